// SPDX-License-Identifier: Apache-2.0
//
// One direction of a shared-memory lane: a ring of cells with one writer process and one reader process.
//
// The writer owns `head` (cells written), the reader owns `tail` (cells given back); both only grow and wrap at 2^32.
// A cell's bytes are written before `head` is stored with release and read after it was loaded with acquire (and the
// same for `tail` when a cell is given back), which is what aarch64 needs and costs nothing on x86-64.
//
// Sleeping: each process has one block (`afd_side`) in the segment with a futex word, `bell`. A process about to sleep
// says so in `waiting`, notes `bell`, looks at its condition once more and sleeps only while `bell` is unchanged.
// Whoever changes the condition looks at `waiting` after a full fence and rings (increments and wakes) if it is set:
// either the sleeper sees the change or the ringer sees the sleeper. Abort and close ring the same bell.
//
// No call sleeps longer than one slice: AFD_AGAIN goes back to the caller, which looks at signals and deadlines.
// afd/connectors/shm/layout.py holds the same layout for Python; afd_ring_abi() lets the loader compare the two.

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <linux/futex.h>
#include <sys/syscall.h>

#define LINE 128  // two 64-byte lines: adjacent-line prefetch on x86-64, 128-byte lines on some aarch64

enum { AFD_OK = 0, AFD_AGAIN = 1, AFD_ABORTED = 2, AFD_PEER_CLOSED = 3, AFD_CLOSED = 4, AFD_HEADER = 5 };

typedef struct {
  _Alignas(LINE) _Atomic uint32_t bell;
  _Atomic uint32_t waiting;
  _Atomic uint32_t aborted;
  _Atomic uint32_t closed;
} afd_side;

typedef struct {
  _Alignas(LINE) _Atomic uint32_t value;
} afd_counter;

typedef struct {
  uint64_t epoch;
  uint64_t step;
  int32_t layer;
  uint32_t ubatch;
  uint32_t rows;
  uint32_t ids;
} afd_header;

// Private to a process: where the ring is and how far this process has come.
typedef struct {
  afd_side *mine;
  afd_side *peer;
  afd_counter *head;
  afd_counter *tail;
  unsigned char *cells;
  uint64_t stride;      // bytes from cell to cell
  uint64_t hidden_at;   // offset of the hidden states in a cell
  uint64_t ids_at;      // offset of the token ids in a cell
  uint64_t row_bytes;   // bytes of one row of hidden states
  uint64_t id_bytes;    // bytes of one token id; 0 when ids do not cross
  uint64_t epoch;
  uint64_t spin_ns;
  uint64_t slice_ns;
  uint32_t count;       // cells in the ring
  uint32_t ubatch;
  uint32_t position;    // the next cell to write or to read, counted like head and tail
  uint32_t poison;      // debugging: overwrite a cell when it is given back
} afd_ring;

// Sizes and offsets that layout.py must agree with, in a fixed order.
void afd_ring_abi(uint64_t out[8]) {
  out[0] = sizeof(afd_side);
  out[1] = offsetof(afd_side, waiting);
  out[2] = offsetof(afd_side, aborted);
  out[3] = offsetof(afd_side, closed);
  out[4] = sizeof(afd_counter);
  out[5] = sizeof(afd_header);
  out[6] = offsetof(afd_header, ids);
  out[7] = sizeof(afd_ring);
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void ring_bell(afd_side *side) {
  atomic_fetch_add(&side->bell, 1);
  // 2^31-1: every waiter. Not a private futex: the sleeper is usually another process.
  syscall(SYS_futex, &side->bell, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

static inline void notify(afd_side *side) {
  atomic_thread_fence(memory_order_seq_cst);
  if (atomic_load_explicit(&side->waiting, memory_order_relaxed)) ring_bell(side);
}

// Cells the writer may fill, or the reader may read, right now.
static inline uint32_t space(const afd_ring *r) {
  return r->count - (r->position - atomic_load_explicit(&r->tail->value, memory_order_acquire));
}
static inline uint32_t data(const afd_ring *r) {
  return atomic_load_explicit(&r->head->value, memory_order_acquire) - r->position;
}

// Why not to wait, or AFD_AGAIN. What is there already is taken even from a peer that has closed.
static int settled(afd_ring *r, uint32_t (*ready)(const afd_ring *)) {
  if (atomic_load_explicit(&r->mine->aborted, memory_order_acquire)) return AFD_ABORTED;
  if (atomic_load_explicit(&r->mine->closed, memory_order_acquire)) return AFD_CLOSED;
  if (ready(r)) return AFD_OK;
  if (atomic_load_explicit(&r->peer->closed, memory_order_acquire)) return ready(r) ? AFD_OK : AFD_PEER_CLOSED;
  return AFD_AGAIN;
}

// Wait for at most one slice until `ready` is not 0. A signal ends the slice early.
static int await(afd_ring *r, uint32_t (*ready)(const afd_ring *)) {
  int rc = settled(r, ready);
  if (rc != AFD_AGAIN) return rc;
  if (r->spin_ns) {
    uint64_t end = now_ns() + r->spin_ns;
    do {
      for (int i = 0; i < 32; i++) {
        if (ready(r)) return AFD_OK;
        relax();
      }
    } while (now_ns() < end);
  }
  afd_side *me = r->mine;
  atomic_store(&me->waiting, 1);
  struct timespec slice = {(time_t)(r->slice_ns / 1000000000u), (long)(r->slice_ns % 1000000000u)};
  for (int over = 0;;) {
    uint32_t bell = atomic_load(&me->bell);
    atomic_thread_fence(memory_order_seq_cst);
    rc = settled(r, ready);
    if (rc != AFD_AGAIN || over) break;
    // A bell that rang, or had rung before the sleep began, may have been for something else: look again.
    over = syscall(SYS_futex, &me->bell, FUTEX_WAIT, bell, &slice, NULL, 0) != 0 && errno != EAGAIN;
  }
  atomic_store_explicit(&me->waiting, 0, memory_order_relaxed);
  return rc;
}

static inline unsigned char *cell(const afd_ring *r) { return r->cells + (r->position % r->count) * r->stride; }

// Write one payload: rows of hidden states from `hidden`, and as many ids from `ids` when ids cross.
int afd_ring_send(afd_ring *r, uint64_t step, int32_t layer, uint32_t rows, const void *hidden, const void *ids) {
  int rc = await(r, space);
  if (rc != AFD_OK) return rc;
  unsigned char *c = cell(r);
  afd_header h = {r->epoch, step, layer, r->ubatch, rows, r->id_bytes != 0};
  memcpy(c, &h, sizeof h);
  memcpy(c + r->hidden_at, hidden, rows * r->row_bytes);
  if (r->id_bytes) memcpy(c + r->ids_at, ids, rows * r->id_bytes);
  r->position++;
  atomic_store_explicit(&r->head->value, r->position, memory_order_release);
  notify(r->peer);
  return AFD_OK;
}

// Wait for the next payload and compare its header with what must come now. The cell stays the reader's.
int afd_ring_peek(afd_ring *r, uint64_t step, int32_t layer, uint32_t rows) {
  int rc = await(r, data);
  if (rc != AFD_OK) return rc;
  afd_header h;
  memcpy(&h, cell(r), sizeof h);
  int same = h.epoch == r->epoch && h.step == step && h.layer == layer && h.ubatch == r->ubatch && h.rows == rows &&
             h.ids == (r->id_bytes != 0);
  return same ? AFD_OK : AFD_HEADER;
}

// Give the cell of the last peek back to the writer.
void afd_ring_release(afd_ring *r) {
  if (r->poison) memset(cell(r) + r->hidden_at, 0xff, r->stride - r->hidden_at);
  r->position++;
  atomic_store_explicit(&r->tail->value, r->position, memory_order_release);
  notify(r->peer);
}

// Peek, copy out, give back.
int afd_ring_take(afd_ring *r, uint64_t step, int32_t layer, uint32_t rows, void *hidden, void *ids) {
  int rc = afd_ring_peek(r, step, layer, rows);
  if (rc != AFD_OK) return rc;
  unsigned char *c = cell(r);
  memcpy(hidden, c + r->hidden_at, rows * r->row_bytes);
  if (r->id_bytes) memcpy(ids, c + r->ids_at, rows * r->id_bytes);
  afd_ring_release(r);
  return AFD_OK;
}

// Tell the own waiters that this process has been aborted, or both sides that this one is closed.
void afd_side_abort(afd_side *mine) {
  atomic_store(&mine->aborted, 1);
  ring_bell(mine);
}
void afd_side_close(afd_side *mine, afd_side *peer) {
  atomic_store(&mine->closed, 1);
  ring_bell(mine);
  ring_bell(peer);
}
