// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// A part of the fake driver, compiled behind libcuda.c: memory that one process
// keeps and others open by a handle, while it lives. Of the real ones some go on
// when it has ended, none can be opened any more.

struct ipc { // CUipcMemHandle
	char magic[16];
	int pid, fd;
	u64 inode, bytes;
	char rest[24];
};

static const char magic[16] = "fake-gpu handle";

// take forgets a region that stands for a whole piece of memory.
static struct region *take(u64 ptr, int opened) {
	for (struct region **r = &regions; *r; r = &(*r)->next) {
		struct region *found = *r;
		if ((u64)found->at != ptr || !found->whole || found->opened != opened) continue;
		*r = found->next;
		current->regions--;
		return found;
	}
	return NULL;
}

CUresult cuMemAlloc_v2(u64 *ptr, size_t bytes) {
	ENTER_CONTEXT
	if (!bytes) LEAVE(INVALID_VALUE);
	size_t n = used(current);
	if (n > total || bytes > total - n) LEAVE(OUT_OF_MEMORY);
	int fd = create(current, bytes);
	if (fd < 0) LEAVE(OUT_OF_MEMORY);
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		close(fd);
		LEAVE(OUT_OF_MEMORY);
	}
	add_region((struct region){.at = at, .bytes = bytes, .fd = fd, .whole = 1, .writable = 1});
	*ptr = (u64)at;
	LEAVE(SUCCESS);
}

CUresult cuMemFree_v2(u64 ptr) {
	ENTER_CONTEXT
	struct region *r = take(ptr, 0);
	if (!r) LEAVE(INVALID_VALUE);
	int early = busy(r->at, r->bytes);
	munmap(r->at, r->bytes);
	close(r->fd);
	free(r);
	pthread_mutex_unlock(&mu);
	if (early) REFUSE(ILLEGAL_STATE, "memory is freed with a copy to it in flight");
	return SUCCESS;
}

CUresult cuIpcGetMemHandle(struct ipc *handle, u64 ptr) {
	ENTER_CONTEXT
	for (struct region *r = regions; r; r = r->next) {
		struct stat st;
		if ((u64)r->at != ptr || !r->whole || r->opened || fstat(r->fd, &st)) continue;
		*handle = (struct ipc){.pid = getpid(), .fd = r->fd, .inode = st.st_ino, .bytes = r->bytes};
		memcpy(handle->magic, magic, sizeof magic);
		LEAVE(SUCCESS);
	}
	LEAVE(INVALID_VALUE);
}

CUresult cuIpcOpenMemHandle_v2(u64 *ptr, struct ipc handle, unsigned flags) {
	ENTER_CONTEXT
	char path[64], link[128];
	struct stat st;
	if (flags != 1 || memcmp(handle.magic, magic, sizeof magic)) LEAVE(INVALID_VALUE);
	if (handle.pid == getpid()) LEAVE(INVALID_CONTEXT);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
	ssize_t n = readlink(path, link, sizeof link - 1);
	if (n < 0) LEAVE(INVALID_HANDLE);
	link[n] = 0;
	if (!is_of(link, current) || stat(path, &st) || st.st_ino != handle.inode) LEAVE(INVALID_HANDLE);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0) close(fd);
	if (at == MAP_FAILED) LEAVE(INVALID_HANDLE);
	add_region((struct region){.at = at, .bytes = handle.bytes, .whole = 1, .opened = 1, .writable = 1});
	*ptr = (u64)at;
	LEAVE(SUCCESS);
}

CUresult cuIpcCloseMemHandle(u64 ptr) {
	ENTER_CONTEXT
	struct region *r = take(ptr, 1);
	if (!r) LEAVE(INVALID_VALUE);
	munmap(r->at, r->bytes);
	free(r);
	LEAVE(SUCCESS);
}
