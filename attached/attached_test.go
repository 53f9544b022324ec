// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package attached

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func row(entry, pid int) Row {
	return Row{Entry: fmt.Sprintf("%064x", entry), Process: Process{
		PID: pid, Name: fmt.Sprint("engine ", pid), Start: uint64(pid) << 40, Since: time.Unix(1764419467, int64(pid)),
	}}
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// next is the file as the process after a crash has it.
func next(t *testing.T, f *File) *File {
	t.Helper()
	d, err := f.FD().Dup()
	do(t, err)
	g, err := Open(d)
	do(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func want(t *testing.T, f *File, rows ...Row) {
	t.Helper()
	got := f.Rows()
	order := func(a, b Row) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	slices.SortFunc(got, order)
	slices.SortFunc(rows, order)
	if diff := cmp.Diff(rows, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRows(t *testing.T) {
	f, err := New()
	do(t, err)
	defer f.Close()
	want(t, next(t, f))
	do(t, f.Add(row(1, 5)), f.Add(row(1, 6)), f.Add(row(2, 5)), f.Add(row(1, 5)))
	want(t, f, row(1, 5), row(1, 6), row(2, 5))
	want(t, next(t, f), row(1, 5), row(1, 6), row(2, 5))
	do(t, f.Remove(func(r Row) bool { return r.PID == 5 }))
	want(t, next(t, f), row(1, 6))
	g := next(t, f)
	do(t, g.Add(row(3, 7)), g.Add(row(3, 8)), g.Add(row(4, 8))) // the first in the free places
	want(t, next(t, f), row(1, 6), row(3, 7), row(3, 8), row(4, 8))
	var st unix.Stat_t
	do(t, unix.Fstat(f.FD().Int(), &st))
	if st.Size != 4*size {
		t.Errorf("the file has %d bytes, places are not used again", st.Size)
	}
}

func TestLongName(t *testing.T) {
	f, err := New()
	do(t, err)
	defer f.Close()
	r := row(1, 5)
	r.Name = "\xc3 a name of more than sixteen bytes"
	do(t, f.Add(r))
	r.Name = "\xc3 a name of more"[:nameLen]
	want(t, next(t, f), r)
}

func TestRefused(t *testing.T) {
	f, err := New()
	do(t, err)
	defer f.Close()
	bad := row(1, 5)
	bad.Entry = "entry"
	if err := f.Add(bad); err == nil || err.Error() != `remember engine 5: "entry" is not the id of an entry` {
		t.Errorf("got %v", err)
	}
	do(t, f.FD().Close())
	if err := f.Add(row(1, 5)); err == nil || err.Error() != "remember engine 5: bad file descriptor" {
		t.Errorf("got %v", err)
	}
	var p [2]int
	do(t, unix.Pipe2(p[:], unix.O_CLOEXEC), unix.Close(p[1]))
	pipe, err := fd.New(p[0])
	do(t, err)
	defer pipe.Close()
	if _, err := Open(pipe); err == nil || err.Error() != "read engines: the descriptor is not of their file" {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := encode(row(1, 5))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(append(bytes.Repeat([]byte{0xff}, size+3), good...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for i, r := range decode(b) {
			if r.Entry == "" {
				continue
			}
			again, err := encode(r)
			if err != nil || !bytes.Equal(again[:summed], b[i*size:][:summed]) && !strings.Contains(r.Name, "\x00") {
				t.Fatalf("%+v: %v", r, err)
			}
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	f, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		if err := f.Add(row(1, 5)); err != nil {
			b.Fatal(err)
		}
	}
}
