/* A CUDA driver and runtime without a GPU: device memory is host memory, and nothing that is queued on a stream happens
 * before somebody waits for it, so that a missing wait shows in the numbers. Kernels are handed to a callback.
 *
 * Streams keep their operations in order. The default stream waits for every stream that is not "non-blocking", and they
 * for it. A copy from memory that is not pinned takes its bytes at once, a copy to such memory is done when it returns.
 * While a stream captures, other threads may not allocate and nobody may use the default stream: both fail, and so does
 * the capture (cudaStreamCaptureModeGlobal).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COPY, KERNEL, RECORD, WAIT, FILL };
enum { MOST_ARGUMENTS = 64, MOST_EVENTS = 1 << 16, NON_BLOCKING = 1 };

typedef struct Operation {
  struct Operation *next;
  int kind;
  void *to, *from, *staged;
  size_t size;
  const char *kernel;
  unsigned grid[3], block[3], shared;
  uint64_t arguments[MOST_ARGUMENTS];
  long event;
} Operation;

typedef struct Stream {
  struct Stream *next;
  Operation *first, *last;
  unsigned flags;
  struct Graph *capturing;
  int running;
  pthread_t runner;
} Stream;

typedef struct Graph {
  Operation *first, *last;
} Graph;

typedef struct Range {
  struct Range *next;
  char *start;
  size_t size;
  int pinned;
} Range;

typedef void (*Launched)(const char *name, const unsigned *grid, const unsigned *block, unsigned shared,
                         const uint64_t *arguments);

static pthread_mutex_t lock;
static pthread_cond_t ran = PTHREAD_COND_INITIALIZER; /* a stream does not run any more */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static Stream default_stream, *streams = &default_stream;
static Range *ranges;
static Launched launched;
static int (*asked)(const char *name); /* how many arguments a kernel has that is not known */
static char done[1 << 16]; /* what streams did, a letter each: see fake_done */
static long done_count;
static long count_of[8]; /* by FAKE_*: see fake_count */
static struct { long version, done; Stream *stream; double at_ms; } events[MOST_EVENTS];
static long event_count;
static __thread int error;
static int captures, capture_broken, capture_us; /* streams that capture; how long they take at least */
static pthread_t capturer;
static int no_memory, fault_at_launch, fault; /* the first two are set by tests; the last is in every answer */

enum { MALLOCS, PINNED, COPIES, LAUNCHES, GRAPHS, GRAPH_LAUNCHES, OWN_STREAM_COPIES, UNPINNED_COPIES };

static void begin(void) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
}
static void enter(void) { pthread_once(&once, begin); pthread_mutex_lock(&lock); }
static int leave(int code) { pthread_mutex_unlock(&lock); if (code) error = code; return code; }

void fake_on_launch(Launched callback) { launched = callback; }
void fake_slow_captures(int us) { capture_us = us; }
void fake_no_memory(int on) { no_memory = on; }
void fake_fault(int code) { fault_at_launch = code; }
void fake_lost(int code) { fault = code; } /* by the kernel that runs */
void fake_on_unknown(int (*callback)(const char *name)) { asked = callback; }
/* Copies, kernels, records of events, waits and fills (C K E W F) in the order in which they were done, since the last call. */
const char *fake_done(void) {
  enter();
  static char text[sizeof done];
  memcpy(text, done, (size_t)done_count);
  text[done_count] = 0;
  done_count = 0;
  pthread_mutex_unlock(&lock);
  return text;
}
long fake_count(int which) { return count_of[which]; }
/* The allocation an address lies in. */
int fake_range(uint64_t address, uint64_t *start, uint64_t *size) {
  enter();
  for (Range *r = ranges; r; r = r->next)
    if ((char *)address >= r->start && (char *)address < r->start + r->size) {
      *start = (uint64_t)r->start;
      *size = r->size;
      pthread_mutex_unlock(&lock);
      return 1;
    }
  pthread_mutex_unlock(&lock);
  return 0;
}

static Stream *of(void *handle) {
  return handle == NULL || handle == (void *)1 || handle == (void *)2 ? &default_stream : handle;
}
static Range *range_of(const void *address) {
  for (Range *r = ranges; r; r = r->next)
    if ((char *)address >= r->start && (char *)address < r->start + r->size) return r;
  return NULL;
}
static int is_pinned(const void *address) { Range *r = range_of(address); return r && r->pinned; }
static int on_device(const void *address) { Range *r = range_of(address); return r && !r->pinned; }

static void run_until(Stream *stream, long event);

static void execute(Operation *operation) {
  if (done_count < (long)sizeof done - 1) done[done_count++] = "CKEWF"[operation->kind];
  if (operation->kind == COPY)
    memcpy(operation->to, operation->staged ? operation->staged : operation->from, operation->size);
  else if (operation->kind == KERNEL && launched) {
    fault = fault_at_launch;
    /* Python's: whoever has its lock may be waiting for ours, to free a tensor */
    pthread_mutex_unlock(&lock);
    launched(operation->kernel, operation->grid, operation->block, operation->shared, operation->arguments);
    pthread_mutex_lock(&lock);
  } else if (operation->kind == FILL)
    memset(operation->to, (int)operation->shared, operation->size);
  else if (operation->kind == RECORD) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    events[operation->event % MOST_EVENTS].at_ms = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
    events[operation->event % MOST_EVENTS].done = operation->event;
  }
  else if (operation->kind == WAIT && operation->from)
    run_until(operation->from, operation->event);
}
/* Everything of `stream`, or as far as its record of `event` (0: all). */
static void run_until(Stream *stream, long event) {
  while (stream->running && !pthread_equal(stream->runner, pthread_self())) pthread_cond_wait(&ran, &lock);
  if (stream->running) return;
  stream->running = 1;
  stream->runner = pthread_self();
  while (stream->first && !(event && events[event % MOST_EVENTS].done >= event)) {
    Operation *operation = stream->first;
    stream->first = operation->next;
    if (!stream->first) stream->last = NULL;
    execute(operation);
    free(operation->staged);
    free(operation);
  }
  stream->running = 0;
  pthread_cond_broadcast(&ran);
}
/* The code of a call that a capture forbids, or of a GPU that is lost; 0. `stream`: what it is about, NULL: memory. */
static int refused(Stream *stream) {
  if (fault) return fault;
  if (!captures || (stream ? stream != &default_stream : pthread_equal(capturer, pthread_self()))) return 0;
  capture_broken = 1;
  return stream ? 906 : 900;
}
static void run_all(void) { for (Stream *s = streams; s; s = s->next) run_until(s, 0); }

static void append(Operation **first, Operation **last, Operation *operation) {
  operation->next = NULL;
  if (*last) (*last)->next = operation; else *first = operation;
  *last = operation;
}
static Operation *copy_of(const Operation *operation) {
  Operation *made = malloc(sizeof *made);
  *made = *operation;
  return made;
}
static void queue(Stream *stream, const Operation *operation) {
  if (stream->capturing) { append(&stream->capturing->first, &stream->capturing->last, copy_of(operation)); return; }
  /* What the default stream and the blocking ones wait for of each other: done at once, which is one legal order. */
  if (stream == &default_stream) {
    for (Stream *s = streams; s; s = s->next)
      if (s != stream && !(s->flags & NON_BLOCKING)) run_until(s, 0);
  } else if (!(stream->flags & NON_BLOCKING)) {
    run_until(&default_stream, 0);
  }
  append(&stream->first, &stream->last, copy_of(operation));
}

/* ---- memory ---- */
static int allocate(void **out, size_t size, int pinned) {
  enter();
  int code = refused(NULL);
  if (code || no_memory) return leave(code ? code : 2);
  Range *range = malloc(sizeof *range);
  range->size = size ? size : 1;
  range->pinned = pinned;
  if (posix_memalign((void **)&range->start, 256, range->size)) return leave(2);
  memset(range->start, 0xA5, range->size);
  range->next = ranges;
  ranges = range;
  count_of[pinned ? PINNED : MALLOCS]++;
  *out = range->start;
  return leave(0);
}
static int release(void *address) {
  if (!address) return 0;
  enter();
  run_all();
  for (Range **at = &ranges; *at; at = &(*at)->next)
    if ((*at)->start == address) {
      Range *gone = *at;
      *at = gone->next;
      free(gone->start);
      free(gone);
      return leave(fault);
    }
  return leave(1);
}
int cudaMalloc(void **out, size_t size) { return allocate(out, size, 0); }
int cudaMallocHost(void **out, size_t size) { return allocate(out, size, 1); }
int cudaFree(void *address) { return release(address); }
int cudaFreeHost(void *address) { return release(address); }
int cudaMemGetInfo(size_t *available, size_t *total) { *available = *total = (size_t)8 << 30; return fault; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *handle) {
  enter();
  Stream *stream = of(handle);
  Operation operation = {.kind = COPY, .to = to, .from = (void *)from, .size = size};
  int code = refused(stream);
  if (code) return leave(code);
  count_of[COPIES]++;
  if (stream != &default_stream) count_of[OWN_STREAM_COPIES]++;
  int unpinned = 0;
  if ((kind == 1 && !on_device(to)) || (kind == 2 && !on_device(from)) || (kind == 1 && on_device(from)) ||
      (kind == 3 && !(on_device(to) && on_device(from))))
    return leave(1);
  if (kind == 1 && !is_pinned(from)) { /* not pinned: staged before the call returns */
    operation.staged = malloc(size);
    memcpy(operation.staged, from, size);
    unpinned = 1;
  }
  queue(stream, &operation);
  if (kind == 2 && !is_pinned(to)) { run_until(stream, 0); unpinned = 1; }
  count_of[UNPINNED_COPIES] += unpinned;
  return leave(0);
}
int cudaMemsetAsync(void *to, int value, size_t size, void *handle) {
  enter();
  Operation operation = {.kind = FILL, .to = to, .size = size, .shared = (unsigned)value};
  int code = refused(of(handle));
  if (code || !on_device(to)) return leave(code ? code : 1);
  queue(of(handle), &operation);
  return leave(0);
}
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *handle) {
  return cudaMemcpyAsync(to, from, size, 3, handle);
}

/* ---- streams and events ---- */
int cudaStreamCreateWithFlags(void **out, unsigned flags) {
  enter();
  Stream *stream = calloc(1, sizeof *stream);
  stream->flags = flags;
  stream->next = streams;
  streams = stream;
  *out = stream;
  return leave(0);
}
int cudaStreamCreate(void **out) { return cudaStreamCreateWithFlags(out, 0); }
int cudaStreamSynchronize(void *handle) {
  enter();
  int code = refused(of(handle));
  if (of(handle)->capturing || code) return leave(code ? code : 900);
  if (of(handle) == &default_stream)
    for (Stream *s = streams; s; s = s->next) if (!(s->flags & NON_BLOCKING)) run_until(s, 0);
  run_until(of(handle), 0);
  return leave(fault);
}
int cudaStreamDestroy(void *handle) {
  enter();
  run_until(of(handle), 0);
  for (Stream **at = &streams; *at; at = &(*at)->next)
    if (*at == handle) { *at = (*at)->next; free(handle); break; }
  return leave(0);
}
int cudaEventCreate(void **out) { enter(); *out = calloc(1, sizeof(long)); return leave(0); }
int cudaEventCreateWithFlags(void **out, unsigned flags) { return cudaEventCreate(out); }
int cudaEventDestroy(void *event) { free(event); return 0; }
int cudaEventRecord(void *event, void *handle) {
  enter();
  long number = ++event_count;
  *(long *)event = number;
  events[number % MOST_EVENTS].version = number;
  events[number % MOST_EVENTS].done = 0;
  events[number % MOST_EVENTS].stream = of(handle);
  Operation operation = {.kind = RECORD, .event = number};
  if (fault) return leave(fault);
  queue(of(handle), &operation);
  return leave(0);
}
int cudaEventSynchronize(void *event) {
  enter();
  long number = *(long *)event;
  if (number) run_until(events[number % MOST_EVENTS].stream, number);
  return leave(fault);
}
int cudaEventElapsedTime(float *ms, void *a, void *b) {
  enter();
  long from = *(long *)a, to = *(long *)b;
  if (events[from % MOST_EVENTS].done != from || events[to % MOST_EVENTS].done != to) return leave(600);
  *ms = (float)(events[to % MOST_EVENTS].at_ms - events[from % MOST_EVENTS].at_ms);
  return leave(fault);
}
int cudaStreamWaitEvent(void *handle, void *event, unsigned flags) {
  enter();
  long number = *(long *)event;
  Operation operation = {.kind = WAIT, .event = number, .from = number ? events[number % MOST_EVENTS].stream : NULL};
  queue(of(handle), &operation);
  return leave(0);
}

/* ---- graphs ---- */
int cudaStreamBeginCapture(void *handle, int mode) {
  enter();
  of(handle)->capturing = calloc(1, sizeof(Graph));
  captures++;
  capturer = pthread_self();
  leave(0);
  usleep(capture_us);
  return 0;
}
int cudaStreamEndCapture(void *handle, void **out) {
  enter();
  *out = capture_broken ? NULL : of(handle)->capturing;
  of(handle)->capturing = NULL;
  captures--;
  capture_broken = 0;
  count_of[GRAPHS]++;
  return leave(*out ? 0 : 901);
}
int cudaGraphInstantiate(void **out, void *graph, unsigned long long flags) {
  enter();
  if (!graph) return leave(1);
  Graph *made = calloc(1, sizeof *made);
  for (Operation *o = ((Graph *)graph)->first; o; o = o->next) append(&made->first, &made->last, copy_of(o));
  *out = made;
  return leave(0);
}
static int drop(Graph *graph) {
  if (!graph) return 0;
  for (Operation *o = graph->first; o;) { Operation *next = o->next; free(o); o = next; }
  free(graph);
  return 0;
}
int cudaGraphDestroy(void *graph) { return drop(graph); }
int cudaGraphExecDestroy(void *graph) { return drop(graph); }
int cudaGraphLaunch(void *graph, void *handle) {
  enter();
  count_of[GRAPH_LAUNCHES]++;
  for (Operation *o = ((Graph *)graph)->first; o; o = o->next) queue(of(handle), o);
  return leave(0);
}

/* ---- the device ---- */
int cudaGetDevice(int *out) { *out = 0; return 0; }
int cudaSetDevice(int device) { return fault ? fault : device == 0 ? 0 : (error = 101); }
int cudaGetDeviceCount(int *out) { *out = 1; return 0; }
int cudaGetDeviceProperties(void *out, int device) { memset(out, 0, 512); return 0; }
int cudaDeviceGetAttribute(int *out, int attribute, int device) {
  *out = attribute == 75 ? 8 : attribute == 76 ? 0 : attribute == 10 ? 32 : attribute == 1 ? 1024 :
         attribute == 16 ? 108 : attribute == 38 ? 40 << 20 : 1 << 16;
  return 0;
}
int cudaDeviceGetPCIBusId(char *out, int size, int device) { snprintf(out, size, "0000:0B:00.0"); return 0; }
int cudaDriverGetVersion(int *out) { *out = 13000; return 0; }
int cudaRuntimeGetVersion(int *out) { *out = 13000; return 0; }
int cudaGetLastError(void) { int found = error; error = 0; return found; }
int cudaPeekAtLastError(void) { return error; }
const char *cudaGetErrorName(int code) { return code ? "fakeError" : "cudaSuccess"; }
const char *cudaGetErrorString(int code) { return code ? "an error of the fake device" : "no error"; }

/* ---- the driver ---- */
typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } Launch;
/* The image is a text, which goes before the names of its kernels: libraries have kernels of the same name. */
int cuModuleLoadData(void **out, const void *image) { *out = strdup(image); return 0; }
int cuModuleUnload(void *module) { free(module); return 0; }
int cuModuleGetFunction(void **out, void *module, const char *name) {
  char whole[1024];
  snprintf(whole, sizeof whole, "%s%s", (char *)module, name);
  *out = strdup(whole);
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuDeviceGetName(char *out, int size, int device) { snprintf(out, size, "fake GPU"); return 0; }
int cuGetErrorName(int code, const char **out) { *out = cudaGetErrorName(code); return 0; }
int cuGetErrorString(int code, const char **out) { *out = cudaGetErrorString(code); return 0; }
int cuTensorMapEncodeTiled(void) { return 801; }
int cuLaunchKernelEx(const Launch *launch, void *function, void **parameters, void **extra) {
  extern int fake_arguments(const char *name);
  int n = fake_arguments(function); /* may ask Python, whose lock's owner may be waiting for ours */
  enter();
  Operation operation = {.kind = KERNEL, .kernel = function, .shared = launch->shared};
  memcpy(operation.grid, launch->grid, sizeof launch->grid);
  memcpy(operation.block, launch->block, sizeof launch->block);
  int code = refused(of(launch->stream));
  if (code) return leave(code);
  for (int axis = 0; axis < 3; axis++)
    if (!launch->grid[axis] || !launch->block[axis]) return leave(1);
  for (int i = 0; i < n; i++) memcpy(&operation.arguments[i], parameters[i], 8);
  count_of[LAUNCHES]++;
  queue(of(launch->stream), &operation);
  return leave(0);
}
/* How many arguments a kernel has: said beforehand, since a launch does not say. */
static struct { const char *name; int count; } known[4096];
static int known_count;
void fake_kernel(const char *name, int count) { known[known_count].name = strdup(name); known[known_count++].count = count; }
int fake_arguments(const char *name) {
  for (int i = 0; i < known_count; i++) if (!strcmp(known[i].name, name)) return known[i].count;
  return asked ? asked(name) : 0;
}
