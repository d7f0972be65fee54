/* hangscope.reader.dumps._decoder: what dump_decoder.c found, as Python values.
 *
 * Built against the limited API of Python 3.10, so one build serves every later version. The GIL is released while the
 * bytes are decoded; Python values are made for the tables, which are small, and for what is left on the machine's
 * stack at the end: the header, or what a broken file still had open. Columns are bytearrays that numpy can share. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include "dump_decoder.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static PyObject *text_of(const hs_dump *d, int64_t string) {
    if (string < 0)
        return PyUnicode_FromStringAndSize("", 0);
    const hs_string *s = &d->strings[string];
    return PyUnicode_DecodeUTF8((const char *)d->data + s->at, (Py_ssize_t)s->size, "surrogateescape");
}

/* ---- what is left on the stack ----------------------------------------------------------------------------------- */

typedef struct {
    const hs_dump *dump;
    PyObject **strings, **nodes; /* made so far, by id */
    uint8_t *wanted;
    uint32_t *queue;
    size_t queued;
    PyObject *drained;
} hs_maker;

static void want(hs_maker *m, const hs_value *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (values[i].tag >= HS_LIST && !m->wanted[values[i].as.number]) {
            m->wanted[values[i].as.number] = 1;
            m->queue[m->queued++] = (uint32_t)values[i].as.number;
        }
}

static PyObject *big_integer(const hs_dump *d, hs_value value) {
    PyObject *method = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes");
    PyObject *arguments =
        Py_BuildValue("(y#s)", (const char *)d->data + value.as.number, (Py_ssize_t)value.length, "little");
    PyObject *named = Py_BuildValue("{s:O}", "signed", Py_True);
    PyObject *made = method && arguments && named ? PyObject_Call(method, arguments, named) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    return made;
}

/* A new reference to the value; containers must have been made. */
static PyObject *value_of(hs_maker *m, hs_value value) {
    PyObject *found = NULL;
    switch (value.tag) {
    case HS_INT:
        return PyLong_FromLongLong(value.as.number);
    case HS_BIG:
        return big_integer(m->dump, value);
    case HS_FLOAT:
        return PyFloat_FromDouble(value.as.real);
    case HS_STR: {
        PyObject **place = &m->strings[value.as.number];
        if (*place == NULL)
            *place = text_of(m->dump, value.as.number);
        found = *place;
        break;
    }
    case HS_TRUE:
        found = Py_True;
        break;
    case HS_FALSE:
        found = Py_False;
        break;
    case HS_NONE:
        found = Py_None;
        break;
    case HS_DRAINED:
        found = m->drained;
        break;
    default:
        found = m->nodes[value.as.number];
    }
    Py_XINCREF(found);
    if (found == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "a container that was not made");
    return found;
}

static PyObject *list_of(hs_maker *m, const hs_value *values, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = value_of(m, values[i]);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *tuple_of(hs_maker *m, const hs_value *values, size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = value_of(m, values[i]);
        if (item == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Makes the containers. A tuple's items are older than itself; lists and dicts are made empty and filled at the end,
 * because they can hold each other and themselves. */
static bool make_nodes(hs_maker *m) {
    const hs_dump *d = m->dump;
    want(m, d->stack, d->top);
    for (size_t done = 0; done < m->queued; done++) {
        const hs_node *node = &d->nodes[m->queue[done]];
        want(m, d->cells + node->at, (size_t)node->count * (node->tag == HS_DICT ? 2 : 1));
    }
    for (size_t id = 0; id < d->node_count; id++) {
        const hs_node *node = &d->nodes[id];
        if (!m->wanted[id])
            continue;
        m->nodes[id] = node->tag == HS_LIST   ? PyList_New(0)
                       : node->tag == HS_DICT ? PyDict_New()
                                              : tuple_of(m, d->cells + node->at, node->count);
        if (m->nodes[id] == NULL)
            return false;
    }
    for (size_t id = 0; id < d->node_count; id++) {
        const hs_node *node = &d->nodes[id];
        const hs_value *items = d->cells + node->at;
        if (!m->wanted[id] || node->tag == HS_TUPLE)
            continue;
        for (uint32_t i = 0; i < node->count; i++) {
            PyObject *one = value_of(m, items[node->tag == HS_DICT ? 2 * (size_t)i : i]);
            PyObject *other = node->tag == HS_DICT && one ? value_of(m, items[2 * (size_t)i + 1]) : NULL;
            int failed = one == NULL                 ? -1
                         : node->tag == HS_LIST      ? PyList_Append(m->nodes[id], one)
                         : other == NULL             ? -1
                                                     : PyDict_SetItem(m->nodes[id], one, other);
            Py_XDECREF(one);
            Py_XDECREF(other);
            if (failed)
                return false;
        }
    }
    return true;
}

/* The levels of the stack as lists, outermost first. */
static PyObject *levels_of(const hs_dump *d, PyObject *drained) {
    hs_maker m = {.dump = d, .drained = drained};
    m.strings = calloc(d->string_count + 1, sizeof *m.strings);
    m.nodes = calloc(d->node_count + 1, sizeof *m.nodes);
    m.wanted = calloc(d->node_count + 1, 1);
    m.queue = malloc((d->node_count + 1) * sizeof *m.queue);
    PyObject *levels = NULL;
    if (m.strings == NULL || m.nodes == NULL || m.wanted == NULL || m.queue == NULL)
        PyErr_NoMemory();
    else if (make_nodes(&m))
        levels = PyList_New((Py_ssize_t)d->depth + 1);
    for (size_t level = 0; levels != NULL && level <= d->depth; level++) {
        size_t start = d->levels[level], end = level < d->depth ? d->levels[level + 1] : d->top;
        PyObject *list = list_of(&m, d->stack + start, end - start);
        if (list == NULL || PyList_SetItem(levels, (Py_ssize_t)level, list) < 0)
            Py_CLEAR(levels);
    }
    for (size_t i = 0; m.strings != NULL && i < d->string_count; i++)
        Py_XDECREF(m.strings[i]);
    for (size_t i = 0; m.nodes != NULL && i < d->node_count; i++)
        Py_XDECREF(m.nodes[i]);
    free(m.strings);
    free(m.nodes);
    free(m.wanted);
    free(m.queue);
    return levels;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

typedef PyObject *(*hs_item)(const hs_dump *, const int64_t *, uint32_t);

static PyObject *name_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    (void)size;
    return text_of(d, words[0]);
}

static PyObject *numbers_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    (void)d;
    PyObject *tuple = PyTuple_New((Py_ssize_t)size);
    for (uint32_t i = 0; tuple != NULL && i < size; i++) {
        PyObject *number = PyLong_FromLongLong(words[i]);
        if (number == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *shapes_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    Py_ssize_t count = 0;
    for (uint32_t at = 0; at < size; at += (uint32_t)words[at] + 1)
        count++;
    PyObject *shapes = PyTuple_New(count);
    uint32_t at = 0;
    for (Py_ssize_t i = 0; shapes != NULL && i < count; i++) {
        PyObject *shape = numbers_item(d, words + at + 1, (uint32_t)words[at]);
        if (shape == NULL || PyTuple_SetItem(shapes, i, shape) < 0)
            Py_CLEAR(shapes);
        at += (uint32_t)words[at] + 1;
    }
    return shapes;
}

static PyObject *dtypes_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)size);
    for (uint32_t i = 0; tuple != NULL && i < size; i++) {
        PyObject *text = text_of(d, words[i]);
        if (text == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, text) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *frame_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    (void)size;
    return Py_BuildValue("(NNL)", text_of(d, words[0]), text_of(d, words[1]), (long long)words[2]);
}

static PyObject *group_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    (void)size;
    PyObject *name = Py_None;
    if (words[1] >= 0)
        name = text_of(d, words[1]);
    else
        Py_INCREF(name);
    return Py_BuildValue("(LNN)", (long long)words[0], name, text_of(d, words[2]));
}

static PyObject *thread_item(const hs_dump *d, const int64_t *words, uint32_t size) {
    (void)size;
    PyObject *number = words[1] ? PyLong_FromLongLong(words[2]) : text_of(d, words[2]);
    return Py_BuildValue("(NN)", text_of(d, words[0]), number);
}

/* A table as a list; with `numbered` in the order of the ids that the Python reader gives, of which there are `count`. */
static PyObject *table_of(const hs_dump *d, const hs_table *table, hs_item item, bool numbered, uint32_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t id = 0; list != NULL && id < table->count; id++) {
        int64_t place = numbered ? table->items[id].number : (int64_t)id;
        uint32_t size;
        const int64_t *words = hs_interned(table, id, &size);
        PyObject *made = item(d, words, size);
        if (made == NULL || place < 0 || PyList_SetItem(list, (Py_ssize_t)place, made) < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_SystemError, "a value that has no number");
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *columns_of(hs_dump *d) {
    PyObject *columns = PyDict_New();
    for (int i = 0; columns != NULL && i < HS_COLUMNS; i++) {
        Py_ssize_t size = (Py_ssize_t)(d->rows * hs_column_widths[i]);
        PyObject *column = PyByteArray_FromStringAndSize(NULL, size);
        if (column != NULL && size)
            memcpy(PyByteArray_AsString(column), d->columns[i], (size_t)size);
        if (column == NULL || PyDict_SetItemString(columns, hs_column_names[i], column) < 0)
            Py_CLEAR(columns);
        Py_XDECREF(column);
        free(d->columns[i]); /* a ring of millions is never there twice */
        d->columns[i] = NULL;
    }
    return columns;
}

static PyObject *result_of(hs_dump *d, enum hs_status status, PyObject *drained) {
    PyObject *detail = status == HS_STRING ? PyLong_FromUnsignedLongLong((unsigned long long)d->detail)
                                           : PyLong_FromLongLong(d->detail);
    PyObject *levels = detail ? levels_of(d, drained) : NULL;
    PyObject *tables = levels ? PyDict_New() : NULL;
    const struct {
        const char *name;
        const hs_table *table;
        hs_item item;
        bool numbered;
        uint32_t count;
    } all[] = {
        {"names", &d->names, name_item, false, d->names.count},
        {"threads", &d->threads, thread_item, false, d->threads.count},
        {"groups", &d->groups, group_item, false, d->groups.count},
        {"shapes", &d->shapes, shapes_item, true, d->shapes.count},
        {"dtypes", &d->dtypes, dtypes_item, true, d->dtypes.count},
        {"frames", &d->frames, frame_item, false, d->frames.count},
        {"stacks", &d->stacks, numbers_item, false, d->stacks.count},
        {"sizes", &d->sizes, numbers_item, false, d->sizes.count},
    };
    for (size_t i = 0; tables != NULL && i < sizeof all / sizeof *all; i++) {
        PyObject *made = table_of(d, all[i].table, all[i].item, all[i].numbered, all[i].count);
        if (made == NULL || PyDict_SetItemString(tables, all[i].name, made) < 0)
            Py_CLEAR(tables);
        Py_XDECREF(made);
    }
    PyObject *columns = tables ? columns_of(d) : NULL;
    PyObject *flags = columns ? Py_BuildValue("(iii)", d->has_stacks, d->old_sequence, d->numbered) : NULL;
    PyObject *result = NULL;
    if (flags)
        result = Py_BuildValue("(inOOnOOO)", (int)status, (Py_ssize_t)d->at, detail, levels, (Py_ssize_t)d->rows,
                               columns, tables, flags);
    Py_XDECREF(detail);
    Py_XDECREF(levels);
    Py_XDECREF(tables);
    Py_XDECREF(columns);
    Py_XDECREF(flags);
    return result;
}

/* Ids of objects matter where a file broke: Python's reader tells by them what was still open. Texts and numbers have
 * no ids that this reader could give them again. */
static bool broke_behind_a_plain_value(const hs_dump *d) {
    for (size_t level = 0; level < d->depth; level++) {
        size_t start = d->levels[level], end = d->levels[level + 1];
        if (end > start && d->stack[end - 1].tag != HS_LIST && d->stack[end - 1].tag != HS_DICT)
            return true;
    }
    return false;
}

PyDoc_STRVAR(decode_doc, "decode(data, limits, drained) -> tuple or None\n\n"
                         "The dump in these bytes, or None where the Python reader has to read it.");

static PyObject *decode(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *data, *drained, *result = NULL;
    long long l[8];
    if (!PyArg_ParseTuple(args, "S(LLLLLLLL)O", &data, &l[0], &l[1], &l[2], &l[3], &l[4], &l[5], &l[6], &l[7],
                          &drained))
        return NULL;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0)
        return NULL;
    hs_limits limits = {l[0], l[1], l[2], l[3], l[4], l[5], l[6], l[7]};
    hs_dump dump;
    enum hs_status status;
    Py_BEGIN_ALLOW_THREADS
    status = hs_decode(&dump, (const uint8_t *)bytes, (size_t)size, &limits);
    Py_END_ALLOW_THREADS
    if (status == HS_NOT_MINE || (status != HS_COMPLETE && broke_behind_a_plain_value(&dump))) {
        result = Py_None;
        Py_INCREF(result);
    } else {
        result = result_of(&dump, status, drained);
    }
    hs_free(&dump);
    return result;
}

static PyMethodDef methods[] = {{"decode", decode, METH_VARARGS, decode_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_decoder", .m_doc = "Flight recorder dumps into columns.", .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__decoder(void) {
    return PyModuleDef_Init(&definition);
}
