# mypy: ignore-errors
"""In each process of the job: start PyTorch's own worker server once torch.distributed is there, and say so in a file.

The rules, because this runs inside other people's training: nothing happens until torch.distributed is imported; no
call of PyTorch is wrapped; any failure is written to the registration file and otherwise ignored; no signal, warning or
log line of the process changes; no module is imported, from wherever PYTHONPATH leads, before torch.distributed has
imported it itself. Python 3.6 syntax (hence no types), standard library only, and no import of hangscope.
"""

import os
import sys
import time

WATCHED = "torch.distributed"
LEAVE_S = 30.0
"""At exit, for questions that are being answered: PyTorch's first dump with stacks takes longest."""
OWN_THREADS_S = 5.0
HURRY_S = 1.0
"""The same, where a signal handler of the script's has interrupted that."""


def arm():
    """Wait for the import of torch.distributed. Costs one string comparison for each module that is imported."""
    sys.meta_path.insert(0, _Finder())
    _take_back_crash_stacks()


def _take_back_crash_stacks():
    """PYTHONFAULTHANDLER, where `run` has set it, prints in no process that has a companion: a rank's stacks go to a
    file, and whoever is no rank prints what it would without hangscope. What the script itself enables stays."""
    if not os.environ.get("HANGSCOPE_CRASH_STACKS") or "faulthandler" not in sys.builtin_module_names:
        return
    asked_for = "faulthandler" in getattr(sys, "_xoptions", {}) or getattr(sys.flags, "dev_mode", False)
    if not asked_for:
        import faulthandler  # built in: found nowhere along PYTHONPATH

        faulthandler.disable()


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != WATCHED:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader:
    """Loads the module with its own loader, puts that loader back where people look for it, then starts the server."""

    def __init__(self, loader, finder):
        self.loader = loader
        self.finder = finder

    def create_module(self, spec):
        create = getattr(self.loader, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module):
        module.__loader__ = self.loader
        if getattr(module, "__spec__", None) is not None:
            module.__spec__.loader = self.loader
        try:
            self.loader.exec_module(module)
        except BaseException:
            sys.meta_path.insert(0, self.finder)  # the import may be tried again
            raise
        try:
            start()
        except Exception:
            pass


class _State:
    """What this process registered for the agent. By `pid` a forked child knows that none of it is its own."""

    pid = None
    registration = None
    directory = None
    folder = None
    identity = None
    socket = None
    server = None
    listeners = ()
    threads = ()
    ending = None
    stack_file = None
    keeps_crashes = False


def start():
    """Start the server and register, unless this process only launches others."""
    _import_what_torch_has()
    directory = os.environ.get("HANGSCOPE_SOCKETS")
    if not directory or _is_launcher() or not _hold(directory):
        return
    pid = os.getpid()
    _State.pid = pid
    _State.registration = {
        "pid": pid,
        "rank": _number("RANK"),
        "local_rank": _number("LOCAL_RANK"),
        "world_size": _number("WORLD_SIZE"),
        "local_world_size": _number("LOCAL_WORLD_SIZE"),
        "restart": _number("TORCHELASTIC_RESTART_COUNT"),
        "spawned": _is_multiprocessing_child(),
        "python": sys.version.split()[0],
        "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
        "socket": None,
        "handlers": [],
        "stack_signal": None,
        "stack_file": None,
        "stack_fd": None,
        "errors": [],
    }
    if _is_seen_from_outside():
        _register_seen()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked_and_seen)
        return
    _attempt("worker server", _start_server, directory)
    _attempt("stack signal", _register_stack_signal)
    _write_registration()
    if _State.registration["rank"] is None and "hangscope_progress" not in _State.registration["handlers"]:
        _attempt("rank watcher", _watch_for_rank)
    import atexit

    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):  # Python 3.7
        os.register_at_fork(after_in_child=_forked)


def _is_seen_from_outside():
    """Whether the agent reads this process's memory, and nothing has to answer in it: no server, no thread, no signal.

    HANGSCOPE_FROM_OUTSIDE says who reads (its pid, user and user namespace) and what it knows: the first and last
    release of torch and of Python. The kernel lets it read what runs below it, as the same user, in its namespace, and
    may be dumped; where any of that is not so, the process answers itself.
    """
    words = os.environ.get("HANGSCOPE_FROM_OUTSIDE", "").split()
    if len(words) != 7 or "t" in getattr(sys, "abiflags", ""):
        return False
    try:
        first, last, oldest, newest = (tuple(int(part) for part in word.split(".")) for word in words[3:])
        torch = tuple(int(part) for part in _State.registration["torch"].split(".")[:2])
        return (
            first <= torch <= last
            and oldest <= sys.version_info[:2] <= newest
            and words[1] in (str(os.geteuid()), "0")
            and os.stat("/proc/self/mem").st_uid == os.geteuid()  # root's where it may not be dumped
            and os.readlink("/proc/self/ns/user") == words[2]
            and _is_below(int(words[0]))
        )
    except (OSError, ValueError):
        return False


def _is_below(wanted):
    """Whether that process started this one, or one that started it; in another pid namespace its number is none."""
    pid = os.getpid()
    for _ in range(100):
        if pid == wanted:
            return True
        pid = int(_said_by_kernel(pid, "stat").rpartition(b")")[2].split()[1])
        if pid <= 1:
            return wanted == pid == 1
    return False


def _register_seen():
    """All that this process does for us from here on: it keeps a file for crash stacks."""
    _attempt("crash stacks", _keep_crash_stacks)
    _write_registration()
    os.close(_State.folder)


def _forked_and_seen():
    """In a forked child whose parent is no rank: it may become one, as under mp's start method "fork"."""
    try:
        if _State.registration["rank"] is None and _default_group() is None and _hold(_State.directory):
            _as_new_process()
            _register_seen()
    except Exception:
        pass


def _hold(directory):
    """Open the directory, if it is ours alone. It may be gone one day, and another's have its name."""
    try:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(folder)
        return False
    _State.directory = directory
    _State.folder = folder
    _State.identity = (found.st_dev, found.st_ino)
    return True


def _folder():
    """The handle, while it is one: the script may have closed what it does not know, and opened something else."""
    found = os.fstat(_State.folder)
    if (found.st_dev, found.st_ino) != _State.identity or not found.st_nlink:
        raise RuntimeError("the directory for sockets is gone")
    return _State.folder


def _is_there():
    """Whether its name still leads to it."""
    found = os.lstat(_State.directory)
    return (found.st_dev, found.st_ino) == _State.identity


def _import_what_torch_has():
    global ctypes, json, signal, socket
    import ctypes
    import json
    import signal
    import socket


def _attempt(what, function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        _State.registration["errors"].append(f"{what}: {type(error).__name__}: {error}")


def _number(name):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def _is_launcher():
    """torchrun imports torch.distributed too, and is no rank."""
    words = getattr(sys, "orig_argv", None) or sys.argv
    if os.path.basename(sys.argv[0] if sys.argv else "") in ("torchrun", "torchrun.exe"):
        return True
    if "-m" not in words[:-1]:
        return False
    return words[words.index("-m") + 1] in ("torch.distributed.run", "torch.distributed.launch")


def _is_multiprocessing_child():
    """A process started by multiprocessing inherits RANK from its parent, so RANK does not tell which rank it is."""
    process = sys.modules.get("multiprocessing.process")
    parent = getattr(process, "parent_process", None)  # Python 3.8
    return parent is not None and parent() is not None


def _start_server(directory):
    module = sys.modules.get("torch._C._distributed_c10d")
    make = getattr(module, "_WorkerServer", None)
    if make is None:
        raise RuntimeError("this torch has no worker server (it came with 2.4)")
    name = f"{os.getpid()}.sock"
    path = os.path.join(directory, name)
    try:
        os.unlink(name, dir_fd=_folder())  # of the same process before an exec
    except FileNotFoundError:
        pass
    if not _is_there():
        raise RuntimeError("another directory has the name of that for sockets")
    pipe_handler = signal.getsignal(signal.SIGPIPE)
    # The server's threads inherit this mask. Without it a signal of the process could land on one of them, and where
    # the script sets SIGPIPE back to its default, a client that goes away early would kill the rank (seen with 2.13).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _all_signals())
    try:
        server = _quietly(make, path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pipe_handler != signal.SIG_IGN:
            try:
                signal.signal(signal.SIGPIPE, pipe_handler)  # the server's constructor ignores SIGPIPE for the process
            except (TypeError, ValueError):
                pass  # not in the main thread, or a handler that C code installed
    _State.server = server
    _keep_for_ever(server)
    _State.socket = path
    _State.registration["socket"] = path
    _State.listeners = [(number, _inode(number)) for number, listens in _sockets_at(path) if listens]
    register = getattr(module, "_register_handler", None)  # 2.10
    if _State.registration["handlers"]:
        return  # a forked child: its parent's handlers are its own too
    if register is not None:
        for handler in (_progress, _sites, _stacks, _calls, _wandb):
            _keep_for_ever(handler)
            register("hangscope" + handler.__name__, handler)
    names = getattr(module, "_get_handler_names", None)
    _State.registration["handlers"] = sorted(names()) if names is not None else []


def _all_signals():
    valid = getattr(signal, "valid_signals", None)  # Python 3.8
    return valid() if valid is not None else set(signal.Signals)


def _quietly(make, path):
    """Make the server without the warning that PyTorch prints about it; whatever else was printed meanwhile stays."""
    try:
        kept = os.dup(2)
    except OSError:
        return make(path)
    try:
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.dup2(writable, 2)
        os.close(writable)
        try:
            server = make(path)
        finally:
            os.dup2(kept, 2)
        try:
            text = os.read(readable, 1 << 16)
        except BlockingIOError:
            text = b""
        os.close(readable)
    finally:
        os.close(kept)
    rest = b"".join(line for line in text.splitlines(True) if b"WorkerServer.cpp" not in line)
    if rest:
        os.write(2, rest)
    return server


def _keep_for_ever(thing):
    """The server's destructor joins a thread, which a forked child does not have: it must run in no process.

    PyTorch lets go of a handler after Python's end, where freeing it is fatal ("PyThreadState_Get: the function must be
    called with the GIL held"): a script that keeps sys.modules takes the module's own hold on it away before.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _register_stack_signal():
    """Let a real-time signal print all Python stacks from C, also while something holds the GIL.

    Only a signal that nobody has touched is taken. The agent sends it as the last resort, after checking that handler
    and file are still ours.
    """
    import faulthandler

    taken = _caught_or_ignored()
    for number in (signal.SIGRTMAX - 7, signal.SIGRTMAX - 9, signal.SIGRTMAX - 11):
        if not taken >> (number - 1) & 1:
            break
    else:
        raise RuntimeError("no free real-time signal")
    _open_stack_file()
    faulthandler.register(number, file=_State.stack_file, all_threads=True, chain=False)
    _enable_crash_stacks(faulthandler)
    _State.registration["stack_signal"] = int(number)


def _keep_crash_stacks():
    """Let a fatal signal print all Python stacks into a file of ours, where the user has decided nothing about it."""
    import faulthandler

    if os.environ.get("HANGSCOPE_CRASH_STACKS") and (_State.keeps_crashes or not faulthandler.is_enabled()):
        _open_stack_file()
        _enable_crash_stacks(faulthandler)


def _open_stack_file():
    name = f"{os.getpid()}.stack"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    _State.stack_file = os.fdopen(os.open(name, flags, 0o600, dir_fd=_folder()), "ab", 0)  # while the process lives
    _State.registration["stack_file"] = os.path.join(_State.directory, name)
    _State.registration["stack_fd"] = _State.stack_file.fileno()


def _enable_crash_stacks(faulthandler):
    # A forked rank has its parent's handler, and with it its parent's file.
    if os.environ.get("HANGSCOPE_CRASH_STACKS") and (_State.keeps_crashes or not faulthandler.is_enabled()):
        faulthandler.enable(_State.stack_file)
        _State.keeps_crashes = True


def _caught_or_ignored():
    bits = 0
    for line in _said_by_kernel("self", "status").splitlines():
        if line.startswith((b"SigCgt:", b"SigIgn:")):
            bits |= int(line.split()[1], 16)
    return bits


def _said_by_kernel(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as stream:
        return stream.read()


def _progress(request, response):
    """The agent's question once a second: which rank is this, and how far is each group, in some 50 microseconds.

    Runs on a thread of the server, with the GIL. It imports nothing: another thread may be importing.
    """
    answer = {"rank": None, "world_size": None, "symbols": _has_symbols()}
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(distributed, "_world", None)
    default = getattr(world, "default_pg", None)
    if default is not None:
        answer["rank"] = default.rank()
        answer["world_size"] = default.size()
        if request.get_param("groups"):
            answer["groups"] = _groups(world)
    elif request.get_param("groups"):
        frame = _init_frame()  # which rank it is going to be, only its own call says
        arguments = frame.f_locals if frame is not None else {}
        for name in ("rank", "world_size"):
            if isinstance(arguments.get(name), int) and arguments[name] >= 0:
                answer[name] = arguments[name]
            elif frame is not None:
                answer[name] = _number(name.upper())  # what env:// is going to read
        answer["meets_at"] = _meets_at(arguments.get("init_method")) if frame is not None else None
    status = {}
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(module, "_dump_fr_trace_json", None)
    if dump is not None and default is not None:
        try:
            status["nccl2"] = json.loads(dump(includeCollectives=False, backend="nccl2").decode())["pg_status"]  # 2.15
            status["gloo"] = json.loads(dump(includeCollectives=False, backend="gloo").decode())["pg_status"]
        except TypeError:
            status = {"gloo": json.loads(dump(includeCollectives=False).decode())["pg_status"]}
    answer["status"] = status
    response.set_content(json.dumps(answer), "application/json")
    response.set_status(200)


def _meets_at(method):
    """Where init_process_group looks for the others: host and port, or a file."""
    if isinstance(method, str) and method.startswith(("tcp://", "file://")):
        return method.partition("?")[0].replace("tcp://", "")
    if method in (None, "env://") and "MASTER_ADDR" in os.environ:
        return "{}:{}".format(os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", ""))
    return None


def _has_symbols():
    """Whether a dump with stacks costs milliseconds: the first one would import all of this (torch 2.11 to 2.13)."""
    return "torch._dynamo" in sys.modules or "torch._inductor" in sys.modules


def _sites(request, response):
    """A dump with stacks of a recorder whose own handler gives none, for the agent to learn calls from."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    body = b""
    if dump is not None and _has_symbols():
        try:
            body = dump(backend=request.get_param("backend") or "gloo")  # 2.15
        except TypeError:
            body = dump()
    response.set_content(body, "application/octet-stream")
    response.set_status(200)


MOST_FRAMES = 100


def _stacks(_, response):
    """Where every thread stands, in some 100 microseconds. Asked only while nothing the rank counts moves."""
    threading = sys.modules.get("threading")
    known = dict(getattr(threading, "_active", {}))
    main = threading.main_thread().ident if threading is not None else None
    threads = []
    for ident, frame in sys._current_frames().items():
        frames = []
        while frame is not None and len(frames) < MOST_FRAMES:
            code = frame.f_code
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
            frame = frame.f_back
        number = getattr(known.get(ident), "native_id", None)  # Python 3.8
        threads.append({"os_thread_id": number, "main": ident == main, "frames": frames})
    response.set_content(json.dumps({"threads": threads}), "application/json")
    response.set_status(200)


MOST_RANKS = 4096
_NUMBERS = ("src", "dst", "tag", "group_src", "group_dst")
_CALLS_WITH_NUMBERS = (
    *("send", "recv", "broadcast", "reduce", "gather", "scatter"),
    *("broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list", "recv_object_list"),
)


def _calls(_, response):
    """The ranks, tag and group that the calls of torch.distributed were given that this process is in.

    Of the functions in distributed_c10d.py alone, and whole numbers alone: nothing that the user's own code holds.
    """
    threading = sys.modules.get("threading")
    main = threading.main_thread().ident if threading is not None else None
    found = []
    for ident, frame in sys._current_frames().items():
        depth = 0
        while frame is not None and depth < MOST_FRAMES:
            try:
                call = _call_of(frame)
            except Exception:
                call = None
            if call is not None:
                found.append(dict(call, main=ident == main))
            frame = frame.f_back
            depth += 1
    response.set_content(json.dumps({"calls": found}), "application/json")
    response.set_status(200)


def _call_of(frame):
    """What one frame was called with, where it is of such a function."""
    code = frame.f_code
    makes_group = code.co_name == "_new_group_with_tag"
    if code.co_name not in _CALLS_WITH_NUMBERS and not makes_group:
        return None
    if not code.co_filename.replace("\\", "/").endswith("torch/distributed/distributed_c10d.py"):
        return None
    values = frame.f_locals
    call = {"function": code.co_name, "line": frame.f_lineno}
    call.update((name, values[name]) for name in _NUMBERS if type(values.get(name)) is int)
    if makes_group:
        call["function"] = "new_group"
        ranks = values.get("ranks")
        if type(ranks) in (list, tuple) and len(ranks) <= MOST_RANKS and all(type(rank) is int for rank in ranks):
            call["ranks"] = list(ranks)
        if type(values.get("group_name")) is str:
            call["group"] = values["group_name"]
        return call
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = values.get("group")
    if group is None:
        group = getattr(world, "default_pg", None)
    name = getattr(world, "pg_names", {}).get(group)
    if type(name) is str:
        call["group"] = name
    members = getattr(world, "pg_group_ranks", {}).get(group) or {}
    for own, of_all in (("group_src", "src"), ("group_dst", "dst")):
        if of_all not in call and own in call:
            call.update((of_all, rank) for rank, place in members.items() if place == call[own])
    return call


def _wandb(request, response):
    """Have W&B tell of a hang (`--on-hang wandb`), where the training itself imported it and has an active run.

    On a thread of its own: it may wait for W&B's service, and this thread answers the agent.
    """
    wandb = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    why = "wandb is not imported" if wandb is None else "it has no active W&B run"
    if run is not None:

        def alert(title, text):
            try:
                run.alert(title=title, text=text, level="ERROR")
            except Exception:
                pass

        given = (request.get_param("title"), request.get_param("text"))
        _start_thread(alert, *given)
    response.set_content(json.dumps({"sent": run is not None, "why": why}), "application/json")
    response.set_status(200)


def _groups(world):
    groups = []
    for group, ranks in list(world.pg_group_ranks.items()):
        ordered = sorted(ranks, key=ranks.get)
        groups.append(
            {
                "name": world.pg_names.get(group, ""),
                "desc": getattr(group, "group_desc", "") or "",
                "ranks": ordered,
                "backend": str(world.pg_backend_config.get(group, "")),
            }
        )
    return groups


def _watch_for_rank():
    """For torch before 2.10 and no RANK in the environment (mp.spawn): look now and then, with growing pauses."""

    def look():
        pause = 0.2
        while not _State.ending.wait(pause):
            pause = min(pause * 1.5, 5.0)
            distributed = sys.modules.get("torch.distributed.distributed_c10d")
            default = getattr(getattr(distributed, "_world", None), "default_pg", None)
            if default is not None:
                _State.registration["rank"] = default.rank()
                _State.registration["world_size"] = default.size()
                _State.registration["spawned"] = False
                _write_registration()
                return

    _start_thread(look)


def _start_thread(target, *arguments):
    """A thread of ours: `_State.ending` wakes it at exit, and it is joined there."""
    import threading

    if _State.ending is None:
        _State.ending = threading.Event()
    thread = threading.Thread(target=target, args=arguments, name="hangscope")
    thread.daemon = True
    thread.start()
    _State.threads += (thread,)


FORKED_S = 600.0


def _forked():
    """In a forked child: where its parent is no rank, it may become one, as under mp's start method "fork".

    The parent's server did not come along, and its socket is not for the child to keep. Children of a rank are its
    helpers, and nothing happens in them.
    """
    try:
        _State.threads = ()
        _State.ending = None
        for number, inode in _State.listeners:
            if _inode(number) == inode:
                os.close(number)
        _State.listeners = ()
        if _State.registration is not None and _State.registration["rank"] is None and _default_group() is None:
            _start_thread(_become_rank)
    except Exception:
        pass


def _become_rank():
    """Look now and then whether this child has come to torch.distributed; if so, it gets a server of its own."""
    deadline = time.monotonic() + FORKED_S
    pause = 0.2
    while _default_group() is None and _init_frame() is None:
        if time.monotonic() > deadline or _State.ending.wait(pause):
            return
        pause = min(pause * 1.3, 5.0)
    directory = _State.directory
    _as_new_process()
    _attempt("worker server", _start_server, directory)
    _attempt("stack signal", _register_stack_signal)
    _write_registration()


def _as_new_process():
    _State.pid = os.getpid()
    names = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
    own = {key: _number(name) for key, name in names.items()}  # its parent had no RANK: this one is its own
    cleared = {"pid": _State.pid, "socket": None, "stack_signal": None, "stack_file": None, "stack_fd": None}
    _State.registration = dict(_State.registration, errors=[], spawned=own["rank"] is None, **own, **cleared)


def _default_group():
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return getattr(getattr(distributed, "_world", None), "default_pg", None)


def _init_frame():
    """The frame of init_process_group that the main thread is in, None where it is in none."""
    threading = sys.modules.get("threading")
    frame = sys._current_frames().get(threading.main_thread().ident) if threading is not None else None
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "torch/distributed" in frame.f_code.co_filename:
            return frame
        frame = frame.f_back
    return None


def _write_registration():
    folder = _folder()
    name = f"{_State.pid}.json"
    temporary = f"{name}.part"
    try:
        os.unlink(temporary, dir_fd=folder)
    except FileNotFoundError:
        pass
    handle = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    with os.fdopen(handle, "w") as stream:
        json.dump(_State.registration, stream)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _at_exit():
    if _State.ending is not None:
        _State.ending.set()
    try:
        _leave(LEAVE_S)
    except Exception:
        pass
    except BaseException:
        # A signal handler of the script's has raised: what it raised goes on, once no thread of the server can do harm.
        try:
            _leave(HURRY_S)
        except Exception:
            pass
        raise


def _leave(seconds):
    """Let no question reach the server any more, then wait for those that it answers, and for our own threads.

    A thread of the server that needs the GIL while Python is torn down ends the process: up to Python 3.13 such a
    thread is unwound, and the `catch (...)` around the server's handlers (torch 2.4 to 2.13) does not throw on, as it
    must then: "FATAL: exception not rethrown". The server's own shutdown() is no help: it holds the GIL while it waits
    for those threads, and it prints. Its idle threads stay where they wait, below Python.
    """
    deadline = time.monotonic() + seconds
    for thread in _State.threads:
        thread.join(min(seconds, OWN_THREADS_S))
    if _State.pid != os.getpid() or not _State.socket:
        return  # a forked child: the server is its parent's
    try:
        _seal(_State.socket, deadline)
    except Exception:
        pass  # its directory is gone: no client finds the way
    try:
        os.unlink(os.path.basename(_State.socket), dir_fd=_folder())
    except Exception:
        pass
    while any(not listens for _, listens in _sockets_at(_State.socket)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _seal(path, deadline):
    """Put a socket that no client can reach into the place of the server's own.

    The server's thread is inside accept() for the former one, which goes with that call. So a client of ours ends that
    call: once it is answered, refused or reset, every connection that the server will ever have is an open descriptor.
    """
    listeners = [number for number, listens in _sockets_at(path) if listens]
    folder = _folder()
    if not _is_there():
        return
    if listeners:
        name = f"{_State.pid}.left"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nameless:
            nameless.setblocking(True)
            nameless.bind(os.path.join(_State.directory, name))
            os.unlink(name, dir_fd=folder)
            nameless.listen(1)
            for number in listeners:
                os.dup2(nameless.fileno(), number, False)
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            try:
                client.connect(path)
            except BlockingIOError:  # its queue is full
                time.sleep(0.005)
                continue
            client.settimeout(max(0.001, deadline - time.monotonic()))
            client.shutdown(socket.SHUT_WR)
            client.recv(1)
        return


def _sockets_at(path):
    """This process's descriptors of sockets with that address, and whether each listens."""
    libc = ctypes.CDLL(None)
    wanted = os.fsencode(path)
    for number in map(int, os.listdir("/proc/self/fd")):
        address = ctypes.create_string_buffer(128)
        size = ctypes.c_uint(len(address))
        is_socket = libc.getsockname(number, address, ctypes.byref(size)) == 0
        if is_socket and address.raw[2 : size.value].rstrip(b"\0") == wanted:  # after the family
            yield number, _listens(libc, number)


def _listens(libc, number):
    value = ctypes.c_int()
    size = ctypes.c_uint(ctypes.sizeof(value))
    libc.getsockopt(number, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(value), ctypes.byref(size))
    return bool(value.value)


def _inode(number):
    """What is open under that number."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
