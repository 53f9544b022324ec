// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package fake builds, for tests, a CUDA driver that needs no GPU: a small
// libcuda.so.1 in C whose memory really is shared between processes. Its source,
// src/libcuda.c, says what it does and which environment variables it obeys.
package fake

import (
	"bytes"
	_ "embed"
	"fmt"
	"os/exec" //nolint:depguard // it is a part of tests, and runs the C compiler
	"path/filepath"
)

//go:embed src/libcuda.c
var source []byte

// UUID is what the fake's only GPU is called unless FAKE_CUDA_GPUS says otherwise.
const UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"

// Build compiles the driver with the C compiler cc and returns the library's
// path, dir/libcuda.so.1. Calls named in without are missing from it, as they are
// from a driver that is too old. Processes that load it by the name libcuda.so.1
// need dir in LD_LIBRARY_PATH when they start.
func Build(dir string, without ...string) (string, error) {
	path := filepath.Join(dir, "libcuda.so.1")
	args := []string{"-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", "-o", path}
	for _, call := range without {
		args = append(args, fmt.Sprintf("-D%s=missing_%s", call, call))
	}
	cmd := exec.Command("cc", append(args, "-")...)
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build fake libcuda: %w\n%s", err, out)
	}
	return path, nil
}
