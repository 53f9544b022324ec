// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// A libnvidia-ml.so.1 of a machine with two H200, the second of which is lost.
// FAKE_NVML_INIT is a number that nvmlInit_v2 returns instead.

#include <stdlib.h>
#include <string.h>

typedef struct {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
} Pci;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} Memory;

typedef struct {
	unsigned pid;
	unsigned long long bytes;
	unsigned instance, compute;
} Process;

enum { OK = 0, INVALID = 2, SHORT = 7, LOST = 15 };

static int copy(char *to, unsigned size, const char *from) {
	if (strlen(from) >= size)
		return SHORT;
	strcpy(to, from);
	return OK;
}

int nvmlInit_v2(void) {
	const char *result = getenv("FAKE_NVML_INIT");
	return result ? atoi(result) : OK;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int result) { return result == LOST ? "GPU is lost" : "an error"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) { return copy(to, size, "580.159.03"); }

int nvmlDeviceGetCount_v2(unsigned *count) {
	*count = 2;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
	*device = (void *)(index + 1UL);
	return index == 0 ? OK : LOST;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
	(void)device;
	return copy(to, size, "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca");
}

int nvmlDeviceGetName(void *device, char *to, unsigned size) {
	(void)device;
	return copy(to, size, "NVIDIA H200");
}

int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
	(void)device;
	memset(pci, 0, sizeof *pci);
	return copy(pci->address, sizeof pci->address, "00000000:19:00.0");
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *m) {
	(void)device;
	if (m->version != (sizeof *m | 2 << 24))
		return INVALID;
	m->total = 143771ULL << 20;
	m->reserved = 614ULL << 20;
	m->used = 2182ULL << 20;
	m->free = m->total - m->reserved - m->used;
	return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *list) {
	(void)device;
	unsigned room = *count;
	*count = 2;
	if (room < 2)
		return SHORT;
	list[0] = (Process){.pid = 4242, .bytes = 629ULL << 20};
	list[1] = (Process){.pid = 4243, .bytes = ~0ULL};
	return OK;
}
