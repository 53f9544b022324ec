// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// gpuEngine asks for weights with a recorded request, maps them as torch does, and
// says the checksum of each tensor as often as it reads a line.
func gpuEngine(socket, request string) error {
	b, err := os.ReadFile(request)
	if err != nil {
		return err
	}
	payload, err := protocol.ReadFrame(bytes.NewReader(b), protocol.MaxRequest)
	if err != nil {
		return err
	}
	reply, conn, err := client.Engine(context.Background(), socket, payload)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch reply.Status {
	case protocol.StatusError:
		_, err = fmt.Fprintln(os.Stdout, "error:", reply.Message)
		return err
	case protocol.StatusMismatch:
		_, err = fmt.Fprintln(os.Stdout, "mismatch:", strings.Join(reply.Fields, "; "))
		return err
	}
	d, err := engineDevice(reply)
	if err != nil {
		return err
	}
	m := &mapped{device: d, by: make(map[string]*cuda.Mapping)}
	for i := range reply.Entries {
		if err := m.add(reply.Entries[i].Handle); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, "ok", reply.GPUUUID, len(reply.Entries)); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		for i := range reply.Entries {
			sum, err := m.sum(&reply.Entries[i])
			if err != nil {
				return err
			}
			fmt.Fprintln(os.Stdout, reply.Entries[i].Name, sum)
		}
		fmt.Fprintln(os.Stdout, "end")
	}
	return m.close()
}

// mapped is the memory behind handles.
type mapped struct {
	device device.Device
	by     map[string]*cuda.Mapping
}

// add maps what a handle is for, once: ShareHeader of c10's CUDACachingAllocator.cpp.
func (m *mapped) add(handle []byte) error {
	if len(handle) == 0 || m.by[string(handle)] != nil {
		return nil
	}
	d, ok := m.device.(*cuda.Device)
	if !ok {
		return m.addLegacy(handle)
	}
	if len(handle) < 30 || handle[1] != 'e' {
		return fmt.Errorf("read handle %x: it is none of an expandable segment", handle)
	}
	le := binary.LittleEndian
	pid, bytes := int(le.Uint64(handle[2:])), int64(le.Uint64(handle[10:]))
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	n, err := unix.PidfdGetfd(pidfd, int(le.Uint32(handle[len(handle)-4:])), 0)
	if err != nil {
		return fmt.Errorf("fetch descriptor: %w", err)
	}
	f, err := fd.New(n)
	if err != nil {
		return err
	}
	defer f.Close()
	m.by[string(handle)], err = d.Map(device.Whole(f, bytes))
	return err
}

func (m *mapped) sum(e *protocol.Entry) (string, error) {
	b := make([]byte, tensor.Elements(e.Shape)*int64(e.DType.Size()))
	if from := m.by[string(e.Handle)]; from != nil {
		if _, err := from.ReadAt(b, e.HandleOffset+e.Offset*int64(e.DType.Size())); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256(b)), nil
}

func (m *mapped) close() error {
	var errs []error
	for _, x := range m.by {
		errs = append(errs, x.Close())
	}
	return errors.Join(append(errs, m.device.Close())...)
}

// golden are the checksums of what vLLM's own loader makes of a model.
func golden(t *testing.T, model string) []string {
	t.Helper()
	b, err := os.ReadFile("../../testdata/layouts/" + model + ".json")
	must(t, err)
	var l struct {
		Entries []struct{ Name, SHA256 string }
	}
	must(t, json.Unmarshal(b, &l))
	var sums []string
	for _, e := range l.Entries {
		sums = append(sums, e.Name+" "+e.SHA256)
	}
	return sums
}

// occupy maps all of a GPU's memory but so many bytes, says so, and keeps it until
// its input ends: another tenant.
func occupy(uuid string, but int64) error {
	d, err := cuda.Open(uuid, cuda.Options{})
	if err != nil {
		return err
	}
	free, err := d.Free()
	if err != nil {
		return err
	}
	buf, err := d.Alloc((free - but) &^ (d.Granularity() - 1))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "taken")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, buf.Close(), d.Close())
}
