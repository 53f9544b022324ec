// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/internal/fd"
)

// report is what the started service found.
type report struct {
	Files []found
	Error string
	Again int      // files of a second call
	Env   []string // variables that a child would see
	Open  []int    // passed descriptors that are open after an error
}

type found struct {
	Name    string
	Number  int
	CloExec bool
	Mode    uint32
}

func service() {
	var r report
	files, err := activation.Files()
	if err != nil {
		r.Error = err.Error()
		for n := 3; n < 10; n++ {
			// Go's runtime keeps files of its own in the first free numbers.
			if to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", n)); strings.Contains(to, "memfd:") {
				r.Open = append(r.Open, n)
			}
		}
	}
	for _, f := range files {
		var s unix.Stat_t
		flags, err := unix.FcntlInt(uintptr(f.Int()), unix.F_GETFD, 0)
		if err := unix.Fstat(f.Int(), &s); err != nil {
			panic(err)
		}
		r.Files = append(r.Files, found{f.Name, f.Int(), err == nil && flags&unix.FD_CLOEXEC != 0, s.Mode & unix.S_IFMT})
	}
	again, _ := activation.Files()
	r.Again = len(again)
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "LISTEN_") {
			r.Env = append(r.Env, v)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		panic(err)
	}
}

func TestFiles(t *testing.T) {
	l := listen(t)
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	memfd := memfd(t, "weights")
	defer memfd.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	all := []*os.File{socket, memfd, r}
	number := regexp.MustCompile(`number [0-9]+`)

	tests := []struct {
		name string
		env  string // set by a shell, which knows the pid that the service will have
		pass []*os.File
		want report
	}{
		{"sockets, memfds and pipes", "LISTEN_PID=$$ LISTEN_FDS=3 LISTEN_FDNAMES=wcache:s-7c1f:s-7c1f LISTEN_PIDFDID=1", all, report{Files: []found{
			{"wcache", 3, true, unix.S_IFSOCK}, {"s-7c1f", 4, true, unix.S_IFREG}, {"s-7c1f", 5, true, unix.S_IFIFO}}}},
		{"no names", "LISTEN_PID=$$ LISTEN_FDS=1", all[:1], report{Files: []found{{"", 3, true, unix.S_IFSOCK}}}},
		{"an empty name among others", "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=:b", all[:2], report{Files: []found{
			{"", 3, true, unix.S_IFSOCK}, {"b", 4, true, unix.S_IFREG}}}},
		{"not started by a manager", "", nil, report{}},
		{"no descriptors", "LISTEN_PID=$$ LISTEN_FDS=0", nil, report{}},
		{"for another process", "LISTEN_PID=1 LISTEN_FDS=1", all[1:2], report{}},
		{"for nobody", "LISTEN_FDS=1", all[1:2], report{}},
		{"not a number", "LISTEN_PID=$$ LISTEN_FDS=many", nil, report{Error: `take passed descriptors: LISTEN_FDS is "many"`}},
		{"negative", "LISTEN_PID=$$ LISTEN_FDS=-1", nil, report{Error: `take passed descriptors: LISTEN_FDS is "-1"`}},
		{"too many", "LISTEN_PID=$$ LISTEN_FDS=1048577", nil, report{Error: `take passed descriptors: LISTEN_FDS is "1048577"`}},
		{"fewer than promised", "LISTEN_PID=$$ LISTEN_FDS=40", all[1:2], report{
			Error: "take passed descriptors: number N of LISTEN_FDS=40: bad file descriptor"}},
		{"fewer names", "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a", all[:2], report{
			Error: "take passed descriptors: LISTEN_FDNAMES has 1 names for 2 descriptors"}},
		{"more names", "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=a:b", all[1:2], report{
			Error: "take passed descriptors: LISTEN_FDNAMES has 2 names for 1 descriptors"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			// The race detector would sleep a second at the end.
			cmd := exec.Command("sh", "-c", `exec env ACTIVATION_TEST_SERVICE=1 GORACE=atexit_sleep_ms=0 `+test.env+` "$0"`, os.Args[0])
			cmd.ExtraFiles = test.pass
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var got report
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			got.Error = number.ReplaceAllString(got.Error, "number N")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

func TestListener(t *testing.T) {
	l := listen(t)
	path := l.Addr().String()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := own(t, "wcache", file).Listener()
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := adopted.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if err := adopted.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the manager's socket was removed with the listener: %v", err)
	}
}

func TestListenerRefuses(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	datagram := func(t *testing.T) activation.File {
		n, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return own(t, "x", os.NewFile(uintptr(n), ""))
	}
	overTCP := func(t *testing.T) activation.File {
		f, err := tcp.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		return own(t, "x", f)
	}
	memory := func(t *testing.T) activation.File { return own(t, "x", memfd(t, "x")) }
	closed := func(t *testing.T) activation.File {
		f := memory(t)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return f
	}

	tests := []struct {
		name string
		file func(*testing.T) activation.File
		want string
	}{
		{"listen on memory", memory, `listen on passed descriptor "x": socket operation on non-socket`},
		{"listen on a datagram socket", datagram, `listen on passed descriptor "x": not a listening stream socket`},
		{"listen on TCP", overTCP, `listen on passed descriptor "x": it is a tcp socket`},
		{"listen on nothing", closed, `listen on passed descriptor "x": it is closed`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := test.file(t)
			_, err := f.Listener()
			if err == nil || err.Error() != test.want {
				t.Errorf("error is %v, not %s", err, test.want)
			}
			if n := f.Int(); n != -1 {
				t.Errorf("descriptor %d is still open", n)
			}
		})
	}
}

// listen listens in a directory whose path is short enough for a socket.
func listen(t *testing.T) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(shortDir(t), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "activation")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func memfd(t *testing.T, content string) *os.File {
	t.Helper()
	n, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(n), "memfd")
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// own makes a passed file of f, which is closed.
func own(t *testing.T, name string, f *os.File) activation.File {
	t.Helper()
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	owner, err := fd.New(n)
	if err != nil {
		t.Fatal(err)
	}
	return activation.File{Name: name, FD: owner}
}
