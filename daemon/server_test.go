// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon/socket"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

const (
	checkpoints = "../testdata/checkpoints"
	wire        = "../testdata/wire"
	layouts     = "../testdata/layouts"
)

// instance is a server with real sockets.
type instance struct {
	*Server
	dir     string // private, where the sockets are
	target  string
	draft   string
	control string
	log     *testmain.Log
	stop    func() error // ends it and waits; safe to call again

	mu     sync.Mutex
	config config.Config
	broken error
}

// setup changes what a server of a test is started with.
type setup struct {
	Options
	Config    config.Config
	ConfigErr error
	Crowd     func(*crowd) // changes the room for connections; nil: nothing
	Headers   int64        // bytes of memory for what is read of directories; 0: as always
}

// start runs a server on checkpoints until the test ends.
func start(t *testing.T, change func(*setup)) *instance {
	t.Helper()
	i := &instance{dir: private(t), log: new(testmain.Log)}
	s := setup{Config: config.Default()}
	root, err := filepath.Abs(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "llama_tied", "qwen2"} {
		s.Config.Roots = append(s.Config.Roots, filepath.Join(root, name))
	}
	s.Config.Assume = []string{config.AssumeRope}
	s.Config.Workers = 1
	s.Options = Options{
		Instance: "host", Device: "host", Version: "test", Index: newIndex(t),
		Manifest:  filepath.Join(i.dir, "manifest.toml"),
		IndexPath: filepath.Join(i.dir, "index.json"),
		Loader:    loader.Options{Command: []string{"/proc/self/exe", "load"}, Stderr: os.Stderr},
		Env:       func(name string) string { return map[string]string{"HF_HUB_CACHE": "/nonexistent"}[name] },
		Log:       slog.New(slog.NewTextHandler(i.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&s)
	}
	i.config, i.broken = s.Config, s.ConfigErr
	s.Configure = func() (config.Config, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.config, i.broken
	}
	i.Server, err = New(s.Options)
	do(t, err)
	if s.Crowd != nil {
		s.Crowd(i.crowd)
	}
	if s.Headers > 0 {
		i.finder.memory = weights.NewMemory(s.Headers)
	}
	if s.Store != nil {
		i.Recover(nil)
	}
	i.target, i.draft, i.control = filepath.Join(i.dir, "t.sock"), filepath.Join(i.dir, "d.sock"), filepath.Join(i.dir, "t.control")
	i.listen(t)
	return i
}

// newIndex is an index that is closed when the test has ended.
func newIndex(t *testing.T) *index.Index {
	x := index.New(index.Options{})
	t.Cleanup(x.Close)
	return x
}

// listen serves on the instance's paths until the test ends, or until stop.
func (i *instance) listen(t *testing.T) {
	t.Helper()
	var listeners []Listener
	for _, l := range []struct {
		path string
		role Role
	}{{i.target, Target}, {i.draft, Draft}, {i.control, Control}} {
		u, claim, err := socket.Listen(l.path)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, Listener{u, l.role, claim})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.Serve(ctx, listeners) }()
	i.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		for _, l := range listeners {
			err = errors.Join(err, l.Claim.Close())
		}
		return err
	})
	t.Cleanup(func() {
		if err := i.stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", i.log)
		}
	})
}

// configure changes what the configuration says and has it read.
func (i *instance) configure(change func(*config.Config), broken error) error {
	i.mu.Lock()
	if change != nil {
		change(&i.config)
	}
	i.broken = broken
	i.mu.Unlock()
	return i.Reload()
}

// private is a folder that Listen accepts, with a short name.
func private(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// recorded is a recorded message without its frame.
func recorded(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(wire, name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	if n := binary.BigEndian.Uint64(b); n != uint64(len(b)-8) {
		t.Fatalf("%s: frame of %d bytes in a file of %d", name, n, len(b))
	}
	return b[8:]
}

// key is the key of a recorded layout, which is of 0.33.
func key(t testing.TB, name string) fingerprint.Key {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(layouts, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Key fingerprint.Key `json:"key"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Key
}

// set is a key with another value of a field, which may be new.
func set(t testing.TB, k fingerprint.Key, name string, value any) fingerprint.Key {
	t.Helper()
	fields := slices.Clone(k.Fields())
	i := slices.IndexFunc(fields, func(f fingerprint.Field) bool { return f.Name == name })
	if i < 0 {
		fields = append(fields, fingerprint.Field{Name: name})
		i = len(fields) - 1
	}
	fields[i].Value = value
	return newKey(t, fields)
}

// without is a key that lacks fields.
func without(t testing.TB, k fingerprint.Key, names ...string) fingerprint.Key {
	t.Helper()
	return newKey(t, slices.DeleteFunc(slices.Clone(k.Fields()), func(f fingerprint.Field) bool { return slices.Contains(names, f.Name) }))
}

func newKey(t testing.TB, fields []fingerprint.Field) fingerprint.Key {
	t.Helper()
	k, err := fingerprint.NewKey(fields)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// getState is a request of 0.33 for a key.
func getState(t testing.TB, k fingerprint.Key) []byte {
	t.Helper()
	b, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetState, Key: k, HasKey: true, KeyField: "cache_key"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// engineAsk has this very process ask as an engine does.
func engineAsk(t testing.TB, socket string, payload []byte) *protocol.Reply {
	t.Helper()
	reply, err := tryEngine(t.Context(), socket, payload)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func tryEngine(ctx context.Context, socket string, payload []byte) (*protocol.Reply, error) {
	reply, conn, err := client.Engine(ctx, socket, payload)
	if err != nil {
		return nil, err
	}
	return reply, conn.Close()
}

// answer is a reply in words, an entry counted.
func answer(r *protocol.Reply) string {
	switch r.Status {
	case protocol.StatusOK:
		return "ok"
	case protocol.StatusError:
		return "error: " + r.Message
	}
	return r.Status + ": " + strings.Join(r.Fields, "; ")
}

// wantAnswer compares a reply in words, which may hold a part that begins or ends
// with "…" for what isn't the test's matter.
func wantAnswer(t testing.TB, r *protocol.Reply, want string) {
	t.Helper()
	got := answer(r)
	if parts := strings.Split(want, "…"); len(parts) > 1 {
		rest, ok := strings.CutPrefix(got, parts[0])
		for _, p := range parts[1:] {
			var found bool
			_, rest, found = strings.Cut(rest, p)
			ok = ok && found
		}
		if ok {
			return
		}
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func (i *instance) status(t testing.TB) control.Status {
	t.Helper()
	reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodStatus}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := reply.Status
	texts := []string{}
	for _, p := range s.Findings {
		if texts = append(texts, p.Text); !slices.Contains(control.ProblemCodes(), p.Code) {
			t.Errorf("a problem without a code: %+v", p)
		}
	}
	if !slices.Equal(s.Problems, texts) {
		t.Errorf("problems are %q, findings %+v", s.Problems, s.Findings)
	}
	return *s
}

// entry is what status says of a key that is loading or served, nil if it is not.
func (i *instance) entry(t testing.TB, k fingerprint.Key) *control.Entry {
	t.Helper()
	for _, e := range i.status(t).Entries {
		if e.Key == k.ID() && e.State != "leaving" {
			return &e
		}
	}
	return nil
}

// model copies a checkpoint below root, settled, as Open wants it.
func model(t testing.TB, root, checkpoint, name string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(checkpoints, checkpoint))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rewrite changes a byte of a file in place, from the end: in the data, and in no
// header.
func rewrite(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, rerr := f.ReadAt(b, st.Size()-2)
	b[0] ^= 1
	_, werr := f.WriteAt(b, st.Size()-2)
	if err := errors.Join(rerr, werr, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// descriptors are those of this process by what they lead to, with how many.
func descriptors(t testing.TB) map[string]int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, e := range list {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue
		}
		to, _, _ = strings.Cut(to, ":[") // sockets and pipes by kind
		got[to]++
	}
	return got
}

// settled is what descriptors gives when no child lives and it has been the same for
// a while: just after a load its child is being reaped and the manifest is being
// written.
func settled(t *testing.T) map[string]int {
	t.Helper()
	last, same := descriptors(t), 0
	testmain.Eventually(t, "descriptors stay the same", func() bool {
		now := descriptors(t)
		living := !errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
		if living || !maps.Equal(now, last) {
			last, same = now, 0
		}
		same++
		return same > 40 // a fifth of a second
	})
	return last
}

// noMore reports whether there are no more descriptors of any kind than before.
func noMore(before, now map[string]int) bool {
	for to, n := range now {
		if n > before[to] {
			return false
		}
	}
	return true
}

// memory is how many segments and tables this process holds.
func memory(t testing.TB) int {
	t.Helper()
	n := 0
	for to, count := range descriptors(t) {
		if strings.HasPrefix(to, "/memfd:wcache") && !strings.HasPrefix(to, "/memfd:wcache-attached") { // each server has one
			n += count
		}
	}
	return n
}

// send writes raw bytes on a new connection.
func send(t testing.TB, socket string, b []byte) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if len(b) > 0 {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// receive reads a reply from a connection.
func receive(t testing.TB, c net.Conn) *protocol.Reply {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testmain.Patience))
	b, err := protocol.ReadFrame(bufio.NewReader(c), protocol.MaxReply)
	if err != nil {
		t.Fatal(err)
	}
	r, err := protocol.DecodeReply(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
