// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/internal/fd"
)

// manager is the receiving end of NOTIFY_SOCKET, as systemd opens it.
type manager struct{ socket int }

type message struct {
	Text string
	FDs  int
}

func newManager(t *testing.T, address string) *manager {
	t.Helper()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	if err := unix.Bind(s, &unix.SockaddrUnix{Name: address}); err != nil {
		t.Fatal(err)
	}
	return &manager{s}
}

// next reads one message; ok is false if there is none. The caller owns fds.
func (m *manager) next(t *testing.T) (text string, fds []int, ok bool) {
	t.Helper()
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*253))
	n, oobn, flags, _, err := unix.Recvmsg(m.socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) {
		return "", nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		t.Fatalf("message is cut, flags %#x", flags)
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	for i := range controls {
		rights, err := unix.ParseUnixRights(&controls[i])
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, rights...)
	}
	return string(buf[:n]), fds, true
}

// all reads what was sent and closes what came with it.
func (m *manager) all(t *testing.T) (list []message) {
	t.Helper()
	for {
		text, fds, ok := m.next(t)
		if !ok {
			return list
		}
		list = append(list, message{text, len(fds)})
		for _, n := range fds {
			unix.Close(n)
		}
	}
}

// start makes a notifier as a service with this environment would.
func start(t *testing.T, env ...string) (*activation.Notifier, error) {
	t.Helper()
	for _, v := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE", "WCACHE_FDSTORE"} {
		t.Setenv(v, "")
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	n, err := activation.NewNotifier()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "WATCHDOG_") || strings.HasSuffix(name, "FDSTORE") {
			t.Errorf("a child would see %s", v)
		}
	}
	return n, err
}

func started(t *testing.T) (*activation.Notifier, *manager) {
	t.Helper()
	path := filepath.Join(shortDir(t), "notify")
	m := newManager(t, path)
	n, err := start(t, "NOTIFY_SOCKET="+path)
	if err != nil {
		t.Fatal(err)
	}
	return n, m
}

func TestMessages(t *testing.T) {
	n, m := started(t)
	tests := []struct {
		name string
		send func() error
		want string
	}{
		{"ready", n.Ready, "READY=1"},
		{"status", func() error { return n.Status("2 models, 57.9 GiB, 1 engine attached") }, "STATUS=2 models, 57.9 GiB, 1 engine attached"},
		{"no status", func() error { return n.Status("") }, "STATUS="},
		{"status that would be two messages", func() error { return n.Status("a\nREADY=1\r\nb\x00c\xff") }, "STATUS=a READY=1 b?c?"},
		{"long status", func() error { return n.Status("a" + strings.Repeat("ä", 2000)) }, "STATUS=a" + strings.Repeat("ä", 1023)},
		{"reloading", n.Reloading, "RELOADING=1\nMONOTONIC_USEC=N"},
		{"stopping", n.Stopping, "STOPPING=1"},
		{"watchdog", n.Watchdog, "WATCHDOG=1"},
		{"remove", func() error { return n.Remove("s-7c1f") }, "FDSTOREREMOVE=1\nFDNAME=s-7c1f"},
	}
	now := regexp.MustCompile(`USEC=[1-9][0-9]*$`)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.send(); err != nil {
				t.Fatal(err)
			}
			got := m.all(t)
			if test.name == "reloading" && len(got) == 1 {
				got[0].Text = now.ReplaceAllString(got[0].Text, "USEC=N")
			}
			if diff := cmp.Diff([]message{{Text: test.want}}, got); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

// The status is told beside requests and loads, which keep descriptors meanwhile.
func TestConcurrentMessages(t *testing.T) {
	n, m := started(t)
	var sending sync.WaitGroup
	for range 4 { // as many as a manager's queue takes at the least
		sending.Go(func() {
			if err := n.Status("empty"); err != nil {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	if diff := cmp.Diff(slices.Repeat([]message{{Text: "STATUS=empty"}}, 4), m.all(t)); diff != "" {
		t.Error("-want +got:\n" + diff)
	}
}

func TestAbstractAddress(t *testing.T) {
	address := fmt.Sprintf("@wcache-activation-test-%d", os.Getpid())
	m := newManager(t, address)
	n, err := start(t, "NOTIFY_SOCKET="+address)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]message{{Text: "READY=1"}}, m.all(t)); diff != "" {
		t.Error("-want +got:\n" + diff)
	}
}

func TestStore(t *testing.T) {
	n, m := started(t)
	weights := own(t, "", memfd(t, "weights"))
	defer weights.Close()
	closed := own(t, "", memfd(t, ""))
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	many := func(count int) []*fd.FD {
		list := make([]*fd.FD, count)
		for i := range list {
			list[i] = weights.FD
		}
		return list
	}
	const text = "FDSTORE=1\nFDNAME=s\nFDPOLL=0"
	tests := []struct {
		name string
		as   string
		fds  []*fd.FD
		want []message
		err  string
	}{
		{"none", "s", nil, nil, ""},
		{"one", "s", many(1), []message{{text, 1}}, ""},
		{"a full message", "s", many(253), []message{{text, 253}}, ""},
		{"one more", "s", many(254), []message{{text, 253}, {text, 1}}, ""},
		{"three messages", "s", many(600), []message{{text, 253}, {text, 253}, {text, 94}}, ""},
		{"longest name", strings.Repeat("n", 255), many(1), []message{{"FDSTORE=1\nFDNAME=" + strings.Repeat("n", 255) + "\nFDPOLL=0", 1}}, ""},
		{"odd but valid name", " ~=!", many(1), []message{{"FDSTORE=1\nFDNAME= ~=!\nFDPOLL=0", 1}}, ""},
		{"a closed one", "s", []*fd.FD{weights.FD, closed.FD}, nil, `store descriptors as "s": number 2 of 2 is closed`},
		{"no name", "", many(1), nil, "store descriptors: a name of 0 bytes, not 1 to 255"},
		{"long name", strings.Repeat("n", 256), many(1), nil, "store descriptors: a name of 256 bytes, not 1 to 255"},
		{"colon", "a:b", many(1), nil, `store descriptors: name "a:b" has characters other than printable ASCII without a colon`},
		{"line break", "a\nREADY=1", many(1), nil, `store descriptors: name "a\nREADY=1" has characters other than printable ASCII without a colon`},
		{"not ASCII", "ä", many(1), nil, `store descriptors: name "ä" has characters other than printable ASCII without a colon`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := n.Store(test.as, test.fds...)
			if got := fmt.Sprint(err); err != nil && got != test.err || err == nil && test.err != "" {
				t.Errorf("error is %v, not %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, m.all(t)); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
	if err := n.Remove("a:b"); err == nil || m.all(t) != nil {
		t.Errorf("remove with a bad name: %v", err)
	}
}

// What the manager gets must be the very memory, not something of its kind.
func TestStoreSendsTheDescriptor(t *testing.T) {
	n, m := started(t)
	weights := own(t, "", memfd(t, "weights"))
	defer weights.Close()
	if err := n.Store("s-1", weights.FD); err != nil {
		t.Fatal(err)
	}
	_, fds, _ := m.next(t)
	if len(fds) != 1 {
		t.Fatalf("%d descriptors came", len(fds))
	}
	stored := os.NewFile(uintptr(fds[0]), "")
	defer stored.Close()
	got := make([]byte, 7)
	if _, err := stored.ReadAt(got, 0); err != nil || string(got) != "weights" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestNewNotifier(t *testing.T) {
	type limits struct {
		Watchdog time.Duration
		Store    int
		Known    bool
	}
	pid := strconv.Itoa(os.Getpid())
	tests := []struct {
		name string
		env  []string
		want limits
		err  string
	}{
		{"plain", nil, limits{}, ""},
		{"watchdog", []string{"WATCHDOG_USEC=30000000"}, limits{Watchdog: 30 * time.Second}, ""},
		{"watchdog for us", []string{"WATCHDOG_USEC=1", "WATCHDOG_PID=" + pid}, limits{Watchdog: time.Microsecond}, ""},
		{"watchdog for another", []string{"WATCHDOG_USEC=1", "WATCHDOG_PID=1"}, limits{}, ""},
		{"store", []string{"FDSTORE=512"}, limits{Store: 512, Known: true}, ""},
		{"store before systemd 254", []string{"WCACHE_FDSTORE=2048"}, limits{Store: 2048, Known: true}, ""},
		{"the manager knows better", []string{"FDSTORE=512", "WCACHE_FDSTORE=2048"}, limits{Store: 512, Known: true}, ""},
		{"bad watchdog", []string{"WATCHDOG_USEC=soon"}, limits{}, `reach the service manager: WATCHDOG_USEC="soon" is not a time`},
		{"watchdog of no time", []string{"WATCHDOG_USEC=0"}, limits{}, `reach the service manager: WATCHDOG_USEC="0" is not a time`},
		{"watchdog past all time", []string{"WATCHDOG_USEC=9223372036854775807"}, limits{},
			`reach the service manager: WATCHDOG_USEC="9223372036854775807" is not a time`},
		{"bad store", []string{"FDSTORE=-1"}, limits{}, `reach the service manager: FDSTORE="-1" is not a number of descriptors`},
		{"address of another kind", []string{"NOTIFY_SOCKET=vsock:2:1234"}, limits{},
			`reach the service manager: NOTIFY_SOCKET="vsock:2:1234" is not the address of a unix socket`},
		{"long address", []string{"NOTIFY_SOCKET=/" + strings.Repeat("x", 107)}, limits{},
			`reach the service manager: NOTIFY_SOCKET="/` + strings.Repeat("x", 107) + `" is not the address of a unix socket`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n, err := start(t, append([]string{"NOTIFY_SOCKET=/nowhere"}, test.env...)...)
			if got := fmt.Sprint(err); err != nil && got != test.err || err == nil && test.err != "" {
				t.Errorf("error is %v, not %q", err, test.err)
			}
			var got limits
			got.Watchdog = n.WatchdogInterval()
			got.Store, got.Known = n.StoreLimit()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

// A manager that is gone is an error to those who ask, and the end of nothing.
func TestManagerGone(t *testing.T) {
	n, err := start(t, "NOTIFY_SOCKET=/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Ready(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("error is %v, not ENOENT", err)
	}
}

func TestWithoutManager(t *testing.T) {
	n, err := start(t)
	if n != nil || err != nil {
		t.Fatalf("notifier is %v, %v", n, err)
	}
	for name, call := range map[string]func() error{
		"Ready": n.Ready, "Reloading": n.Reloading, "Stopping": n.Stopping, "Watchdog": n.Watchdog, "Close": n.Close,
		"Status": func() error { return n.Status("x") },
		"Store":  func() error { return n.Store("x") },
		"Remove": func() error { return n.Remove("x") },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if limit, known := n.StoreLimit(); limit != 0 || known {
		t.Errorf("limit is %d, %v", limit, known)
	}
	if d := n.WatchdogInterval(); d != 0 {
		t.Errorf("interval is %v", d)
	}
}
