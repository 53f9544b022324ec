// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package fake builds, for tests, GPU drivers that need no GPU: a small
// libcuda.so.1 in C whose memory really is shared between processes, and the same
// with the names of HIP. Their source, src/libcuda.c, says what they do and which
// environment variables they obey.
package fake

import (
	"bytes"
	_ "embed"
	"fmt"
	"os/exec" //nolint:depguard // it is a part of tests, and runs the C compiler
	"path/filepath"
)

var (
	//go:embed src/libcuda.c
	libcuda []byte
	//go:embed src/ipc.c
	ipc []byte
	//go:embed src/hip.h
	hip []byte
)

// UUID is what the fake's only GPU is called unless FAKE_CUDA_GPUS says otherwise.
const UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"

// Build compiles the driver with the C compiler cc and returns the library's
// path, dir/libcuda.so.1. Calls named in without are missing from it, as they are
// from a driver that is too old. Processes that load it by the name libcuda.so.1
// need dir in LD_LIBRARY_PATH when they start.
func Build(dir string, without ...string) (string, error) {
	return build(filepath.Join(dir, "libcuda.so.1"), without, libcuda, ipc)
}

// BuildHIP does so with dir/libamdhip64.so.6, whose calls have HIP's names.
func BuildHIP(dir string, without ...string) (string, error) {
	return build(filepath.Join(dir, "libamdhip64.so.6"), without, hip, libcuda, ipc)
}

func build(path string, without []string, source ...[]byte) (string, error) {
	args := []string{"-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", path}
	for _, call := range without {
		args = append(args, fmt.Sprintf("-D%s=missing_%s", call, call))
	}
	cmd := exec.Command("cc", append(args, "-")...)
	cmd.Stdin = bytes.NewReader(bytes.Join(source, []byte("\n")))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build fake %s: %w\n%s", filepath.Base(path), err, out)
	}
	return path, nil
}
