// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// A libcuda.so.1 for machines without a GPU: the calls that wcache makes, over
// memory files. Memory that is exported can be imported by any process, lives as
// long as one holds it, and counts as used of its GPU meanwhile, by a look into
// /proc as slow as that is. A copy is made as late as the API allows, when
// somebody waits for it, so that whoever doesn't wait reads old bytes; and what a
// driver would forgive, such as a context that leaks a stream, is an error here.
//
// Its environment, read by cuInit while no context is there:
//
//   FAKE_CUDA_GPUS    uuids, GPU-… or MIG-…, with the PCI bus in hexadecimal
//                     behind an @, in the order of CUDA: GPU-…@3b,GPU-…@1a
//   FAKE_CUDA_TOTAL   bytes of each GPU, 16 GiB if it is not set
//   FAKE_CUDA_FAIL    what goes wrong: cuMemCreate:2:700 has the second use of
//                     cuMemCreate return 700; instead of a number, hang and kill
//                     do that; several with commas
//   FAKE_CUDA_VERSION what cuDriverGetVersion says: 13000 if it is not set
//   FAKE_CUDA_NO_VMM  set: memory can't be exported
//   FAKE_CUDA_COMPUTE_MODE  a CUcomputemode, 0 if it is not set
//   CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER as in the real one

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long u64;

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
};

enum { GRAIN = 2 << 20, MAX_GPUS = 16 };

// What a caller may not do is said where somebody who debugs a test sees it.
#define REFUSE(code, ...) return fprintf(stderr, "fake libcuda: " __VA_ARGS__), fputc('\n', stderr), code

struct gpu {
	char name[64]; // the uuid as NVML has it
	unsigned char uuid[16];
	int bus, retained;
	int streams, events, hosts, regions; // that are alive
};

struct mem { // what a CUmemGenericAllocationHandle stands for
	struct mem *next;
	int fd, gpu, imported;
	size_t bytes;
};

struct region { // of addresses
	struct region *next;
	char *at;
	size_t bytes;
	size_t mapped; // bytes, in pieces
	int writable;
	int whole, opened, fd; // memory of its own, not of a handle: made here, or another process's
};

struct host { // pinned memory
	struct host *next;
	char *at;
	size_t bytes;
};

struct copy {
	struct copy *next;
	char *dst;
	const char *src;
	size_t bytes;
	u64 number;
};

struct stream {
	struct stream *next;
	struct copy *first, **last;
	u64 number; // of the last copy
};

struct event {
	struct stream *stream;
	u64 number; // of the copy that it stands behind
};

struct fault {
	char call[48];
	int use, code; // -1: hang, -2: kill
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int initialized, gpus, faults;
static struct gpu gpu[MAX_GPUS];
static struct fault fault[32];
static size_t total;
static struct mem *mems;
static struct region *regions;
static struct host *hosts;
static struct stream *streams;
static __thread struct gpu *current;

// enter is the beginning of every call. It returns with mu held, or an error.
static CUresult enter(const char *call) {
	pthread_mutex_lock(&mu);
	for (int i = 0; i < faults; i++) {
		if (strcmp(fault[i].call, call) || --fault[i].use) continue;
		pthread_mutex_unlock(&mu);
		if (fault[i].code == -1) for (;;) pause();
		if (fault[i].code == -2) kill(getpid(), SIGKILL);
		return fault[i].code;
	}
	if (initialized) return SUCCESS;
	pthread_mutex_unlock(&mu);
	return NOT_INITIALIZED;
}

#define ENTER                            \
	CUresult result = enter(__func__); \
	if (result) return result;

#define LEAVE(code)               \
	do {                          \
		result = (code);          \
		pthread_mutex_unlock(&mu); \
		return result;            \
	} while (0)

#define ENTER_CONTEXT      \
	ENTER                  \
	if (!current || !current->retained) LEAVE(INVALID_CONTEXT);

// Devices

static int parse_uuid(const char *s, unsigned char uuid[16]) {
	int n = 0;
	for (; *s && n < 32; s++) {
		if (*s == '-') continue;
		if (!isxdigit((unsigned char)*s)) return -1;
		int digit = isdigit((unsigned char)*s) ? *s - '0' : (*s | 32) - 'a' + 10;
		uuid[n / 2] = n % 2 ? uuid[n / 2] | digit : digit << 4;
		n++;
	}
	return n == 32 ? 0 : -1;
}

static int by_bus(const void *a, const void *b) { return ((const struct gpu *)a)->bus - ((const struct gpu *)b)->bus; }

// choose applies CUDA_VISIBLE_DEVICES: what is behind a name of none isn't seen.
static void choose(const char *visible) {
	struct gpu all[MAX_GPUS];
	int n = gpus;
	memcpy(all, gpu, sizeof all);
	gpus = 0;
	char list[1024];
	snprintf(list, sizeof list, "%s", visible);
	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		int found = -1;
		for (int i = 0; i < n; i++)
			if (isdigit((unsigned char)*s) ? atoi(s) == i : !strncmp(all[i].name, s, strlen(s))) found = i;
		if (found < 0 || gpus == MAX_GPUS) return;
		gpu[gpus++] = all[found];
	}
}

static void configure(void) {
	const char *s = getenv("FAKE_CUDA_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES"), *order = getenv("CUDA_DEVICE_ORDER");
	char list[2048];
	snprintf(list, sizeof list, "%s", s ? s : "GPU-fa4e0000-0000-4000-8000-000000000000@01");
	gpus = 0;
	memset(gpu, 0, sizeof gpu);
	for (char *save, *e = strtok_r(list, ",", &save); e && gpus < MAX_GPUS; e = strtok_r(NULL, ",", &save)) {
		struct gpu *g = &gpu[gpus];
		char *at = strchr(e, '@');
		g->bus = at ? (int)strtol(at + 1, NULL, 16) : gpus;
		if (at) *at = 0;
		snprintf(g->name, sizeof g->name, "%s", e);
		if (strlen(e) == 40 && !parse_uuid(e + 4, g->uuid)) gpus++;
	}
	if (order && !strcmp(order, "PCI_BUS_ID")) qsort(gpu, gpus, sizeof *gpu, by_bus);
	if (visible) choose(visible);

	s = getenv("FAKE_CUDA_TOTAL");
	total = s ? strtoull(s, NULL, 10) : (size_t)16 << 30;

	faults = 0;
	s = getenv("FAKE_CUDA_FAIL");
	snprintf(list, sizeof list, "%s", s ? s : "");
	for (char *save, *e = strtok_r(list, ",", &save); e && faults < 32; e = strtok_r(NULL, ",", &save)) {
		struct fault *f = &fault[faults];
		char code[16] = "";
		if (sscanf(e, "%47[^:]:%d:%15s", f->call, &f->use, code) != 3) continue;
		f->code = !strcmp(code, "hang") ? -1 : !strcmp(code, "kill") ? -2 : atoi(code);
		faults++;
	}
}

static int retained(void) {
	int n = 0;
	for (int i = 0; i < gpus; i++) n += gpu[i].retained;
	return n;
}

CUresult cuInit(unsigned flags) {
	pthread_mutex_lock(&mu);
	if (!retained()) configure();
	initialized = 1;
	pthread_mutex_unlock(&mu);
	ENTER
	LEAVE(flags ? INVALID_VALUE : gpus ? SUCCESS : NO_DEVICE);
}

CUresult cuDriverGetVersion(int *version) {
	const char *s = getenv("FAKE_CUDA_VERSION");
	*version = s ? atoi(s) : 13000;
	return SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
	ENTER
	*count = gpus;
	LEAVE(SUCCESS);
}

CUresult cuDeviceGet(int *device, int ordinal) {
	ENTER
	*device = ordinal;
	LEAVE(ordinal >= 0 && ordinal < gpus ? SUCCESS : INVALID_DEVICE);
}

CUresult cuDeviceGetUuid_v2(void *uuid, int device) {
	ENTER
	memcpy(uuid, gpu[device].uuid, 16);
	LEAVE(SUCCESS);
}

CUresult cuDeviceGetUuid(unsigned char *uuid, int device) {
	ENTER
	memcpy(uuid, gpu[device].uuid, 16);
	if (!strncmp(gpu[device].name, "MIG", 3)) uuid[0] ^= 0xff; // its GPU's
	LEAVE(SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *id, int size, int device) {
	ENTER
	int n = snprintf(id, size, "0000:%02X:00.0", gpu[device].bus);
	LEAVE(n < size ? SUCCESS : INVALID_VALUE);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
	ENTER
	if (device < 0 || device >= gpus) LEAVE(INVALID_DEVICE);
	switch (attribute) {
	case 20: *value = getenv("FAKE_CUDA_COMPUTE_MODE") ? atoi(getenv("FAKE_CUDA_COMPUTE_MODE")) : 0; break;
	case 102: case 103: *value = !getenv("FAKE_CUDA_NO_VMM"); break;
	default: LEAVE(INVALID_VALUE);
	}
	LEAVE(SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(struct gpu **ctx, int device) {
	ENTER
	gpu[device].retained++;
	*ctx = &gpu[device];
	LEAVE(SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(int device) {
	ENTER
	struct gpu *g = &gpu[device];
	if (!g->retained) LEAVE(INVALID_CONTEXT);
	if (!--g->retained && (g->streams || g->events || g->hosts || g->regions)) {
		fprintf(stderr, "fake libcuda: a context ends with %d streams, %d events, %d pieces of pinned memory, %d regions\n",
			g->streams, g->events, g->hosts, g->regions);
		g->streams = g->events = g->hosts = g->regions = 0;
		LEAVE(ILLEGAL_STATE);
	}
	LEAVE(SUCCESS);
}

CUresult cuCtxSetCurrent(struct gpu *ctx) {
	ENTER
	if (ctx && !ctx->retained) LEAVE(INVALID_CONTEXT);
	current = ctx;
	LEAVE(SUCCESS);
}

// Streams, on which only copies are made

static void run(struct stream *s, u64 number) {
	while (s->first && s->first->number <= number) {
		struct copy *c = s->first;
		memcpy(c->dst, c->src, c->bytes);
		if (!(s->first = c->next)) s->last = &s->first;
		free(c);
	}
}

static int in(const char *at, const char *begin, size_t bytes) { return at >= begin && at < begin + bytes; }

// busy says that a copy is to come from or to go to these bytes.
static int busy(const char *begin, size_t bytes) {
	for (struct stream *s = streams; s; s = s->next)
		for (struct copy *c = s->first; c; c = c->next)
			if (in(c->src, begin, bytes) || in(c->dst, begin, bytes)) return 1;
	return 0;
}

CUresult cuCtxSynchronize(void) {
	ENTER_CONTEXT
	for (struct stream *s = streams; s; s = s->next) run(s, ~0ULL);
	LEAVE(SUCCESS);
}

CUresult cuStreamCreate(struct stream **stream, unsigned flags) {
	(void)flags;
	ENTER_CONTEXT
	struct stream *s = calloc(1, sizeof *s);
	s->last = &s->first;
	s->next = streams;
	*stream = streams = s;
	current->streams++;
	LEAVE(SUCCESS);
}

CUresult cuStreamSynchronize(struct stream *stream) {
	ENTER_CONTEXT
	run(stream, ~0ULL);
	LEAVE(SUCCESS);
}

CUresult cuStreamDestroy_v2(struct stream *stream) {
	ENTER_CONTEXT
	run(stream, ~0ULL);
	struct stream **s = &streams;
	while (*s != stream) s = &(*s)->next;
	*s = stream->next;
	free(stream);
	current->streams--;
	LEAVE(SUCCESS);
}

CUresult cuEventCreate(struct event **event, unsigned flags) {
	(void)flags;
	ENTER_CONTEXT
	*event = calloc(1, sizeof **event);
	current->events++;
	LEAVE(SUCCESS);
}

CUresult cuEventRecord(struct event *event, struct stream *stream) {
	ENTER_CONTEXT
	event->stream = stream;
	event->number = stream->number;
	LEAVE(SUCCESS);
}

CUresult cuEventSynchronize(struct event *event) {
	ENTER_CONTEXT
	if (event->stream) run(event->stream, event->number);
	LEAVE(SUCCESS);
}

CUresult cuEventDestroy_v2(struct event *event) {
	ENTER_CONTEXT
	free(event);
	current->events--;
	LEAVE(SUCCESS);
}

// Pinned memory and copies

CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags) {
	(void)flags;
	ENTER_CONTEXT
	if (!bytes) LEAVE(INVALID_VALUE);
	struct host *h = calloc(1, sizeof *h);
	*h = (struct host){.next = hosts, .at = memset(ptr, 0xa5, bytes), .bytes = bytes};
	hosts = h;
	current->hosts++;
	LEAVE(SUCCESS);
}

CUresult cuMemHostUnregister(void *ptr) {
	ENTER_CONTEXT
	for (struct host **h = &hosts; *h; h = &(*h)->next) {
		struct host *found = *h;
		if (found->at != ptr) continue;
		int early = busy(found->at, found->bytes);
		*h = found->next;
		free(found);
		current->hosts--;
		pthread_mutex_unlock(&mu);
		if (early) REFUSE(ILLEGAL_STATE, "memory is unpinned with a copy from it in flight");
		return SUCCESS;
	}
	LEAVE(INVALID_VALUE);
}

static int is_host(const char *at, size_t bytes) {
	for (struct host *h = hosts; h; h = h->next)
		if (in(at, h->at, h->bytes) && bytes <= h->bytes - (at - h->at)) return 1;
	return 0;
}

static int is_mapped(const char *at, size_t bytes) {
	for (struct region *r = regions; r; r = r->next)
		if (in(at, r->at, r->bytes) && bytes <= r->bytes - (at - r->at) && r->writable) return 1;
	return 0;
}

static void add_copy(struct stream *s, char *dst, const char *src, size_t bytes) {
	struct copy *c = calloc(1, sizeof *c);
	*c = (struct copy){.dst = dst, .src = src, .bytes = bytes, .number = ++s->number};
	*s->last = c;
	s->last = &c->next;
}

CUresult cuMemcpyHtoDAsync_v2(u64 dst, const void *src, size_t bytes, struct stream *stream) {
	ENTER_CONTEXT
	if (!bytes || !is_mapped((char *)dst, bytes) || !is_host(src, bytes)) LEAVE(INVALID_VALUE);
	add_copy(stream, (char *)dst, src, bytes);
	LEAVE(SUCCESS);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, u64 src, size_t bytes, struct stream *stream) {
	ENTER_CONTEXT
	if (!bytes || !is_mapped((char *)src, bytes) || !is_host(dst, bytes)) LEAVE(INVALID_VALUE);
	add_copy(stream, dst, (char *)src, bytes);
	LEAVE(SUCCESS);
}

CUresult cuMemcpyDtoH_v2(void *dst, u64 src, size_t bytes) {
	ENTER_CONTEXT
	if (!is_mapped((char *)src, bytes)) LEAVE(INVALID_VALUE);
	memcpy(dst, (char *)src, bytes);
	LEAVE(SUCCESS);
}

// Memory of a GPU

static const char prefix[] = "/memfd:fake-gpu:";

struct seen {
	ino_t list[4096];
	int n;
};

static int is_new(struct seen *s, ino_t inode) {
	for (int i = 0; i < s->n; i++)
		if (s->list[i] == inode) return 0;
	if (s->n < 4096) s->list[s->n++] = inode;
	return 1;
}

static int is_of(const char *link, const struct gpu *g) {
	return !strncmp(link, prefix, sizeof prefix - 1) && !strncmp(link + sizeof prefix - 1, g->name, strlen(g->name));
}

static size_t held(const char *pid, const struct gpu *g, struct seen *seen) {
	char path[512], link[128];
	size_t sum = 0;
	snprintf(path, sizeof path, "/proc/%s/fd", pid);
	DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/%s/fd/%s", pid, e->d_name);
		ssize_t n = readlink(path, link, sizeof link - 1);
		if (n < 0) continue;
		link[n] = 0;
		struct stat st;
		if (is_of(link, g) && !stat(path, &st) && is_new(seen, st.st_ino)) sum += st.st_size;
	}
	if (d) closedir(d);
	return sum;
}

static size_t mapped(const char *pid, const struct gpu *g, struct seen *seen) {
	char path[64], line[512], link[256];
	size_t sum = 0;
	snprintf(path, sizeof path, "/proc/%.20s/maps", pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		unsigned long begin, end, inode;
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu %255s", &begin, &end, &inode, link) == 4 && is_of(link, g) && is_new(seen, inode))
			sum += end - begin;
	}
	if (f) fclose(f);
	return sum;
}

// used is what all processes hold of a GPU's memory.
static size_t used(const struct gpu *g) {
	static struct seen seen;
	seen.n = 0;
	size_t sum = 0;
	DIR *d = opendir("/proc");
	for (struct dirent *e; d && (e = readdir(d));)
		if (isdigit((unsigned char)*e->d_name)) sum += held(e->d_name, g, &seen) + mapped(e->d_name, g, &seen);
	if (d) closedir(d);
	return sum;
}

// create makes memory of a GPU, which is a file that says so.
static int create(const struct gpu *g, size_t bytes) {
	char name[128];
	snprintf(name, sizeof name, "fake-gpu:%s", g->name);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || !ftruncate(fd, bytes)) return fd;
	close(fd);
	return -1;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *all) {
	ENTER_CONTEXT
	size_t n = used(current);
	*all = total;
	*free = n < total ? total - n : 0;
	LEAVE(SUCCESS);
}

struct prop { // CUmemAllocationProp
	int type, handles, location, device;
	u64 rest[2];
};

CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct prop *prop, int option) {
	ENTER
	*bytes = GRAIN;
	LEAVE(prop->type == 1 && prop->location == 1 && option == 0 ? SUCCESS : INVALID_VALUE);
}

static struct mem *find(u64 handle) {
	struct mem *m = mems;
	while (m && (u64)m != handle) m = m->next;
	return m;
}

static CUresult add(u64 *handle, struct mem m) {
	struct mem *new = calloc(1, sizeof *new);
	*new = m;
	new->next = mems;
	mems = new;
	*handle = (u64)new;
	return SUCCESS;
}

CUresult cuMemCreate(u64 *handle, size_t bytes, const struct prop *prop, u64 flags) {
	ENTER
	if (!bytes || bytes % GRAIN || prop->type != 1 || prop->handles != 1 || prop->location != 1 || prop->device < 0 || prop->device >= gpus ||
		prop->rest[0] || prop->rest[1] || flags)
		LEAVE(INVALID_VALUE);
	const struct gpu *g = &gpu[prop->device];
	size_t n = used(g);
	if (n > total || bytes > total - n) LEAVE(OUT_OF_MEMORY);
	int fd = create(g, bytes);
	if (fd < 0) LEAVE(OUT_OF_MEMORY);
	LEAVE(add(handle, (struct mem){.fd = fd, .gpu = prop->device, .bytes = bytes}));
}

CUresult cuMemRelease(u64 handle) {
	ENTER
	for (struct mem **m = &mems; *m; m = &(*m)->next) {
		struct mem *found = *m;
		if ((u64)found != handle) continue;
		*m = found->next;
		close(found->fd);
		free(found);
		LEAVE(SUCCESS);
	}
	LEAVE(INVALID_VALUE);
}

CUresult cuMemExportToShareableHandle(int *fd, u64 handle, int type, u64 flags) {
	ENTER
	struct mem *m = find(handle);
	if (!m || m->imported || type != 1 || flags) LEAVE(INVALID_VALUE); // an importer can't export
	*fd = dup(m->fd); // not close-on-exec: the caller's business
	LEAVE(*fd >= 0 ? SUCCESS : INVALID_HANDLE);
}

CUresult cuMemImportFromShareableHandle(u64 *handle, void *from, int type) {
	ENTER_CONTEXT
	char path[64], link[128];
	struct stat st;
	int fd = (int)(intptr_t)from;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, link, sizeof link - 1);
	link[n < 0 ? 0 : n] = 0;
	if (type != 1 || !is_of(link, current) || fstat(fd, &st)) LEAVE(INVALID_VALUE);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	LEAVE(add(handle, (struct mem){.fd = fd, .gpu = (int)(current - gpu), .imported = 1, .bytes = st.st_size}));
}

static void add_region(struct region r) {
	struct region *new = calloc(1, sizeof *new);
	*new = r;
	new->next = regions;
	regions = new;
	current->regions++;
}

CUresult cuMemAddressReserve(u64 *ptr, size_t bytes, size_t alignment, u64 hint, u64 flags) {
	ENTER_CONTEXT
	if (!bytes || bytes % GRAIN || alignment || hint || flags) LEAVE(INVALID_VALUE);
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) LEAVE(OUT_OF_MEMORY);
	add_region((struct region){.at = at, .bytes = bytes});
	*ptr = (u64)at;
	LEAVE(SUCCESS);
}

static struct region *region(u64 ptr, size_t bytes) {
	struct region *r = regions;
	while (r && (r->whole || (u64)r->at != ptr || r->bytes != bytes)) r = r->next;
	return r;
}

CUresult cuMemAddressFree(u64 ptr, size_t bytes) {
	ENTER_CONTEXT
	struct region *found = region(ptr, bytes);
	if (!found || found->mapped) LEAVE(INVALID_VALUE);
	struct region **r = &regions;
	while (*r != found) r = &(*r)->next;
	*r = found->next;
	munmap(found->at, bytes);
	free(found);
	current->regions--;
	LEAVE(SUCCESS);
}

// around gives the region that a piece is in.
static struct region *around(u64 ptr, size_t bytes) {
	struct region *r = regions;
	while (r && (r->whole || ptr < (u64)r->at || bytes > r->bytes || ptr - (u64)r->at > r->bytes - bytes)) r = r->next;
	return r;
}

// Pieces are mapped one behind the other: that is all that wcache does, and leaves no
// doubt of what is mapped already.
CUresult cuMemMap(u64 ptr, size_t bytes, size_t offset, u64 handle, u64 flags) {
	ENTER_CONTEXT
	struct region *r = around(ptr, bytes);
	struct mem *m = find(handle);
	if (!r || ptr != (u64)r->at + r->mapped || !m || bytes != m->bytes || offset || flags) LEAVE(INVALID_VALUE);
	if (mmap((void *)ptr, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED) LEAVE(OUT_OF_MEMORY);
	r->mapped += bytes;
	LEAVE(SUCCESS);
}

CUresult cuMemUnmap(u64 ptr, size_t bytes) {
	ENTER_CONTEXT
	struct region *r = around(ptr, bytes);
	if (!r || r->mapped < bytes) LEAVE(INVALID_VALUE);
	int early = busy((void *)ptr, bytes);
	mmap((void *)ptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	r->mapped -= bytes;
	r->writable = 0;
	pthread_mutex_unlock(&mu);
	if (early) REFUSE(ILLEGAL_STATE, "memory is unmapped with a copy to it in flight");
	return SUCCESS;
}

struct access { // CUmemAccessDesc
	int location, device, flags;
};

CUresult cuMemSetAccess(u64 ptr, size_t bytes, const struct access *access, size_t count) {
	ENTER_CONTEXT
	struct region *r = region(ptr, bytes);
	if (!r || r->mapped != bytes || count != 1 || access->location != 1 || &gpu[access->device] != current || access->flags != 3) LEAVE(INVALID_VALUE);
	mprotect(r->at, bytes, PROT_READ | PROT_WRITE);
	r->writable = 1;
	LEAVE(SUCCESS);
}
