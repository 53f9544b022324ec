// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// A libnvidia-ml.so.1 of a machine with two H200, the second of which is lost; or
// of the machine that the file $FAKE_NVML describes, which is read by each
// nvmlInit_v2, so that a test can have things happen. Its lines are
//
//   init N          what nvmlInit_v2 returns
//   hang CALL       a call that never returns, named without its version
//   gpu UUID        a GPU; what follows is about it
//   slice UUID      a MIG slice of the last GPU, in no list; likewise
//   fail N          what every call about it returns
//   total MIB, used MIB
//   ecc N           uncorrected errors of its memory; without: they aren't counted
//   recovery N      nvmlDeviceGpuRecoveryAction_t
//   process PID MIB, graphics PID MIB
//   hidden N        what asking for its processes returns
//
// FAKE_NVML_INIT is a number that nvmlInit_v2 returns instead.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;

typedef struct {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
} Pci;

typedef struct {
	unsigned version;
	u64 total, reserved, free, used;
} Memory;

typedef struct {
	unsigned pid;
	u64 bytes;
	unsigned instance, compute;
} Process;

typedef struct {
	unsigned field, scope;
	long long time, latency;
	unsigned type, result;
	u64 value;
} Field;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SHORT = 7, LOST = 15 };
enum { RECOVERY_ACTION = 230 };

struct list {
	int n;
	Process of[8];
};

static struct gpu {
	char uuid[64];
	int fail, counted, recovery, hidden;
	u64 total, used, ecc;
	struct gpu *whole; // of a slice
	struct list compute, graphics;
} all[8];
static int count, init;
static char hanging[64];

static void machine(void) {
	count = 2;
	all[0] = (struct gpu){.uuid = "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca", .total = 143157, .used = 2182};
	all[0].compute = (struct list){2, {{.pid = 4242, .bytes = 629ULL << 20}, {.pid = 4243, .bytes = ~0ULL}}};
	all[1] = (struct gpu){.uuid = "GPU-lost", .fail = LOST};
}

static void add(struct list *l, unsigned pid, u64 mib) { l->of[l->n++ % 8] = (Process){.pid = pid, .bytes = mib << 20}; }

static void read_machine(FILE *f) {
	char line[128], key[16], word[64];
	struct gpu *g = all, *whole = NULL;
	count = init = 0;
	*hanging = 0;
	memset(all, 0, sizeof all);
	while (fgets(line, sizeof line, f)) {
		u64 mib = 0;
		if (sscanf(line, "%15s %63s %llu", key, word, &mib) < 2)
			continue;
		u64 n = strtoull(word, NULL, 10);
		if (!strcmp(key, "init"))
			init = (int)n;
		if (!strcmp(key, "hang"))
			strcpy(hanging, word);
		if (!strcmp(key, "gpu") || !strcmp(key, "slice")) {
			g = &all[count++];
			strcpy(g->uuid, word);
			g->whole = *key == 's' ? whole : NULL;
			if (*key == 'g')
				whole = g;
		}
		if (!strcmp(key, "fail"))
			g->fail = (int)n;
		if (!strcmp(key, "total"))
			g->total = n;
		if (!strcmp(key, "used"))
			g->used = n;
		if (!strcmp(key, "ecc")) {
			g->counted = 1;
			g->ecc = n;
		}
		if (!strcmp(key, "recovery"))
			g->recovery = (int)n;
		if (!strcmp(key, "hidden"))
			g->hidden = (int)n;
		if (!strcmp(key, "process"))
			add(&g->compute, (unsigned)n, mib);
		if (!strcmp(key, "graphics"))
			add(&g->graphics, (unsigned)n, mib);
	}
}

static int copy(char *to, unsigned size, const char *from) {
	if (strlen(from) >= size)
		return SHORT;
	strcpy(to, from);
	return OK;
}

// called is the beginning of every call about a GPU.
static int called(const char *call, const struct gpu *g) {
	if (!strcmp(call, hanging))
		for (;;)
			pause();
	return g ? g->fail : OK;
}

#define CALLED(call, g)                     \
	do {                                \
		int result = called(call, g); \
		if (result)                 \
			return result;      \
	} while (0)

int nvmlInit_v2(void) {
	const char *result = getenv("FAKE_NVML_INIT"), *path = getenv("FAKE_NVML");
	FILE *f = path ? fopen(path, "re") : NULL;
	machine();
	if (f) {
		read_machine(f);
		fclose(f);
	}
	CALLED("nvmlInit", NULL);
	return result ? atoi(result) : init;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int result) { return result == LOST ? "GPU is lost" : "an error"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) { return copy(to, size, "580.159.03"); }

int nvmlDeviceGetCount_v2(unsigned *n) {
	*n = 0;
	for (int i = 0; i < count; i++)
		*n += !all[i].whole;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **device) {
	for (int i = 0; i < count; i++) {
		if (all[i].whole || index--)
			continue;
		*device = &all[i];
		CALLED("nvmlDeviceGetHandleByIndex", *device);
		return OK;
	}
	return INVALID;
}

// A GPU that fails can't say what it is called.
int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **device) {
	CALLED("nvmlDeviceGetHandleByUUID", NULL);
	for (int i = 0; i < count; i++) {
		if (strcmp(all[i].uuid, uuid) || all[i].fail)
			continue;
		*device = &all[i];
		return OK;
	}
	return NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(struct gpu *g, unsigned *is) {
	*is = !!g->whole;
	return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *n) {
	CALLED("nvmlDeviceGetMaxMigDeviceCount", g);
	*n = g->whole ? 0 : 7;
	return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *g, unsigned index, struct gpu **slice) {
	CALLED("nvmlDeviceGetMigDeviceHandleByIndex", g);
	for (int i = 0; i < count; i++) {
		if (all[i].whole != g || index--)
			continue;
		*slice = &all[i];
		return OK;
	}
	return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct gpu *g, struct gpu **device) {
	*device = g->whole;
	return OK;
}

int nvmlDeviceGetIndex(struct gpu *g, unsigned *index) {
	CALLED("nvmlDeviceGetIndex", g);
	*index = 0;
	for (struct gpu *x = all; x < g; x++)
		*index += !x->whole;
	return OK;
}

int nvmlDeviceGetUUID(struct gpu *g, char *to, unsigned size) {
	CALLED("nvmlDeviceGetUUID", g);
	return copy(to, size, g->uuid);
}

int nvmlDeviceGetName(struct gpu *g, char *to, unsigned size) {
	CALLED("nvmlDeviceGetName", g);
	return copy(to, size, g->whole ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200");
}

int nvmlDeviceGetPciInfo_v3(struct gpu *g, Pci *pci) {
	CALLED("nvmlDeviceGetPciInfo", g);
	memset(pci, 0, sizeof *pci);
	return copy(pci->address, sizeof pci->address, "00000000:19:00.0");
}

int nvmlDeviceGetMemoryInfo_v2(struct gpu *g, Memory *m) {
	CALLED("nvmlDeviceGetMemoryInfo", g);
	if (m->version != (sizeof *m | 2 << 24))
		return INVALID;
	m->reserved = 614ULL << 20;
	m->total = (g->total << 20) + m->reserved;
	m->used = g->used << 20;
	m->free = m->total - m->reserved - m->used;
	return OK;
}

static int give(const struct list *l, unsigned *n, Process *to) {
	unsigned room = *n;
	*n = (unsigned)l->n;
	if (room < *n)
		return SHORT;
	memcpy(to, l->of, *n * sizeof *to);
	return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *n, Process *to) {
	CALLED("nvmlDeviceGetComputeRunningProcesses", g);
	return g->hidden ? g->hidden : give(&g->compute, n, to);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *g, unsigned *n, Process *to) {
	CALLED("nvmlDeviceGetGraphicsRunningProcesses", g);
	return give(&g->graphics, n, to);
}

int nvmlDeviceGetTotalEccErrors(struct gpu *g, int uncorrected, int aggregate, u64 *n) {
	CALLED("nvmlDeviceGetTotalEccErrors", g);
	if (!g->counted || uncorrected != 1 || aggregate != 0)
		return NOT_SUPPORTED;
	*n = g->ecc;
	return OK;
}

int nvmlDeviceGetFieldValues(struct gpu *g, int n, Field *list) {
	CALLED("nvmlDeviceGetFieldValues", g);
	for (int i = 0; i < n; i++) {
		list[i].type = 1; // unsigned int
		list[i].result = list[i].field == RECOVERY_ACTION && !g->whole ? OK : NOT_SUPPORTED;
		list[i].value = (u64)g->recovery;
	}
	return OK;
}
