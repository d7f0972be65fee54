/* hangscope.bundle.redact._scan: the places that scan.c found, as 64-bit numbers in a bytes object. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include "scan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static PyObject *result_of(hs_places *found) {
    PyObject *made = found->failed ? PyErr_NoMemory()
                                   : PyBytes_FromStringAndSize((const char *)found->at,
                                                               (Py_ssize_t)(found->count * sizeof *found->at));
    free(found->at);
    return made;
}

static const char NAME[] = "hangscope.text";

static void forget(PyObject *capsule) {
    free(PyCapsule_GetPointer(capsule, NAME));
}

PyDoc_STRVAR(tree_doc, "tree(classes, next, ends) -> object\n\nWords to look for; see scan.h.");

static PyObject *tree(PyObject *module, PyObject *args) {
    (void)module;
    const char *classes, *next, *ends;
    Py_ssize_t classes_size, next_size, ends_size;
    if (!PyArg_ParseTuple(args, "y#y#y#", &classes, &classes_size, &next, &next_size, &ends, &ends_size))
        return NULL;
    size_t nodes = (size_t)ends_size / 2, width = nodes ? (size_t)next_size / 2 / nodes : 0;
    bool right = classes_size == 256 && width && (size_t)next_size == nodes * width * 2 && (size_t)ends_size == nodes * 2;
    for (size_t i = 0; right && i < 256; i++)
        right = (uint8_t)classes[i] < width;
    if (!right)
        return PyErr_Format(PyExc_ValueError, "no tree of words");
    hs_words *words = malloc(sizeof *words + 256 + (size_t)next_size + (size_t)ends_size);
    if (!words)
        return PyErr_NoMemory();
    uint16_t *numbers = (uint16_t *)(void *)(words + 1);
    memcpy(numbers, next, (size_t)next_size);
    memcpy(numbers + nodes * width, ends, (size_t)ends_size);
    uint8_t *kinds = (uint8_t *)(numbers + nodes * width + nodes);
    memcpy(kinds, classes, 256);
    for (size_t i = 0; right && i < nodes * width; i++)
        right = numbers[i] < nodes;
    *words = (hs_words){kinds, numbers, numbers + nodes * width, nodes, width};
    PyObject *made = right ? PyCapsule_New(words, NAME, forget) : PyErr_Format(PyExc_ValueError, "no tree of words");
    if (!made)
        free(words);
    return made;
}

PyDoc_STRVAR(words_doc, "words(tree, data) -> bytes\n\nPlaces of words, as place << 16 | number of the word.");

static PyObject *words(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *capsule;
    const char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Oy#", &capsule, &data, &size))
        return NULL;
    const hs_words *tree = PyCapsule_GetPointer(capsule, NAME);
    if (!tree)
        return NULL;
    hs_places found = {0};
    hs_scan_words(tree, (const uint8_t *)data, (size_t)size, &found);
    return result_of(&found);
}

static PyObject *scanned(PyObject *data, void (*scan)(const uint8_t *, size_t, hs_places *)) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0)
        return NULL;
    hs_places found = {0};
    scan((const uint8_t *)bytes, (size_t)size, &found);
    return result_of(&found);
}

PyDoc_STRVAR(long_doc, "long_words(data) -> bytes\n\nBegins and ends of long words that may be random.");

static PyObject *long_words(PyObject *module, PyObject *data) {
    (void)module;
    return scanned(data, hs_scan_long);
}

PyDoc_STRVAR(escaped_doc, "escaped(data) -> bytes\n\nBegins and ends of stretches of lines with escapes.");

static PyObject *escaped(PyObject *module, PyObject *data) {
    (void)module;
    return scanned(data, hs_scan_escaped);
}

static PyMethodDef methods[] = {{"tree", tree, METH_VARARGS, tree_doc},
                                {"words", words, METH_VARARGS, words_doc},
                                {"long_words", long_words, METH_O, long_doc},
                                {"escaped", escaped, METH_O, escaped_doc},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_doc = "Where redaction has to look.", .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__scan(void) {
    return PyModuleDef_Init(&definition);
}
