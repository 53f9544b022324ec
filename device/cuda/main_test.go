// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/cuda/fake"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

// TestMain is also the program of other processes: a consumer of a segment, and a
// loader.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("CUDA_TEST_CHILD") {
	case "consumer":
		err = consumer()
	case "loader":
		err = loader()
	default:
		testmain.Run(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "fake-cuda-")
	if err != nil {
		return "", err
	}
	// The library stays loaded when its file is gone.
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := fake.Build(dir)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "libcuda-*.so.1")
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	return f.Name(), errors.Join(err, f.Close())
})
