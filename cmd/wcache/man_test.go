// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/protocol"
)

// TestManual checks that wcache(1) has each command and each option, and that each item of
// the page's COMMANDS exists in the program.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../../man/wcache.1")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(b), "\n.Sh COMMANDS\n")
	page, _, _ = strings.Cut(page, "\n.Sh ")
	root := (&app{env: func(string) string { return "" }}).root()
	root.InitDefaultHelpFlag()
	parts := map[string]string{}
	name := ""
	for line := range strings.Lines(page) {
		if m := regexp.MustCompile(`^\.It Cm (\S+)`).FindStringSubmatch(line); m != nil {
			name = m[1]
		}
		parts[name] += line
	}
	compareOptions(t, root.LocalFlags().FlagUsages(), "", parts[""])
	delete(parts, "")
	for _, c := range root.Commands() {
		switch part, ok := parts[c.Name()]; {
		case c.Hidden:
		case !ok:
			t.Errorf("%s is not in the page", c.Name())
		default:
			compareOptions(t, c.LocalNonPersistentFlags().FlagUsages(), c.Name(), part)
		}
		delete(parts, c.Name())
	}
	for name := range parts {
		t.Errorf("%s is in the page and no command", name)
	}
}

// option is how a line of a command's usage begins.
var option = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`)

// compareOptions compares the options of a usage with those of the page's items.
func compareOptions(t *testing.T, usage, command, part string) {
	t.Helper()
	var said, have []string
	for _, m := range option.FindAllStringSubmatch(usage, -1) {
		said = append(said, m[1])
	}
	head := false // of an item that goes over several lines
	for line := range strings.Lines(part) {
		head = strings.HasPrefix(line, ".It Xo") || head && !strings.HasPrefix(line, ".Xc")
		if strings.HasPrefix(line, ".It Fl ") || head {
			for _, m := range regexp.MustCompile(` -([a-z][a-z-]+)`).FindAllStringSubmatch(line, -1) {
				have = append(have, m[1])
			}
		}
	}
	for _, name := range said {
		if name != "help" && !slices.Contains(have, name) {
			t.Errorf("%s --%s is not in the page", command, name)
		}
	}
	for _, name := range have {
		if name != "help" && !slices.Contains(said, name) {
			t.Errorf("%s --%s is in the page and no option", command, name)
		}
	}
}

// TestManualMetrics compares the names of metrics with those of the page.
func TestManualMetrics(t *testing.T) {
	b, err := os.ReadFile("../../man/wcache.1")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`\bwcache_[a-z_]+`)
	var documented []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, ".It Ic wcache_") {
			documented = append(documented, name.FindAllString(line, -1)...)
		}
	}
	said := name.FindAllString(string(source), -1)
	for _, s := range said {
		if !slices.Contains(documented, s) {
			t.Errorf("%s is not in the page", s)
		}
	}
	for _, s := range documented {
		if !slices.Contains(said, s) {
			t.Errorf("%s is in the page and no metric", s)
		}
	}
}

// TestManualLog makes a daemon log the messages that wcache@.service(8) lists.
func TestManualLog(t *testing.T) {
	dir := manualDir(t)
	socket, draft, model := filepath.Join(dir, "s.sock"), filepath.Join(dir, "d.sock"), filepath.Join(dir, "models", "llama")
	if err := os.CopyFS(model, os.DirFS("../../testdata/checkpoints/llama")); err != nil {
		t.Fatal(err)
	}
	index, file := filepath.Join(dir, "index.json"), filepath.Join(dir, "wcache.toml")
	write(t, index, "no index")
	write(t, file, `bugdet = "1GiB"`)
	m := startManual(t, dir, nil, "serve", "--listen", socket, "--listen-draft", draft, "--state", dir, "--config", file, "--root", model)
	m.says(t, `msg="index of model directories starts anew"`)
	m.says(t, `msg="configuration is not used"`)
	m.says(t, "msg=serving")
	m.signal(t, unix.SIGHUP)
	m.says(t, `msg="configuration is not used: what is held is served, and nothing is loaded"`)
	write(t, file, "")
	m.signal(t, unix.SIGHUP)
	m.says(t, `msg="configuration read again"`)

	dialled(t, socket, []byte("hello"))
	m.says(t, `msg="request refused"`)
	dialled(t, socket, encoded(t, protocol.GetState))
	m.says(t, `msg="get_state without a key"`)
	recorded, err := os.ReadFile("../../testdata/wire/0.33.0-get_state-llama-tp1r0.bin")
	if err != nil {
		t.Fatal(err)
	}
	getState := recorded[8:]
	dialled(t, draft, getState)
	m.says(t, `msg="get_state refused"`)
	m.says(t, `reason="the socket is for the other role"`)
	if _, err := dialled(t, filepath.Join(dir, "s.control"), nil).Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	m.says(t, `msg="control request refused"`)

	// The index can't be written where a directory is.
	if err := os.Remove(index); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Mkdir(index, 0o700); err != nil {
		t.Fatal(err)
	}
	_, held, err := client.Engine(t.Context(), socket, getState)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	m.says(t, `msg="index of model directories is not kept"`)

	for _, tt := range []struct {
		payload []byte
		want    string
	}{
		{getState, `msg="get_state not answered"`},
		{encoded(t, protocol.GetMemory), `msg="reply not written"`},
		{encoded(t, protocol.Watch), `msg="watch not answered"`},
	} {
		// The client has gone before the daemon goes on.
		m.stop(t)
		if err := dialled(t, socket, tt.payload).Close(); err != nil {
			t.Fatal(err)
		}
		m.signal(t, unix.SIGCONT)
		m.says(t, tt.want)
	}

	var files unix.Rlimit
	if err := unix.Prlimit(m.Process.Pid, unix.RLIMIT_NOFILE, nil, &files); err != nil {
		t.Fatal(err)
	}
	files.Cur = 8
	if err := unix.Prlimit(m.Process.Pid, unix.RLIMIT_NOFILE, &files, nil); err != nil {
		t.Fatal(err)
	}
	dialled(t, socket, nil)
	m.says(t, `msg="cannot accept"`)
}

// TestManualStore is the same for messages that need the service manager, which stops
// listening here.
func TestManualStore(t *testing.T) {
	dir := manualDir(t)
	socket, notify := filepath.Join(dir, "s.sock"), filepath.Join(dir, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	go takeAll(manager)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listener, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	unknown, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	lock, err := os.Create(socket + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "wcache.toml"), "")
	m := startManual(t, dir, func(c *exec.Cmd) {
		// The shell becomes the daemon, and knows its number before.
		if err := os.Symlink(c.Path, filepath.Join(dir, "wcache")); err != nil {
			t.Fatal(err)
		}
		c.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec ./wcache "$@"`}, c.Args...)
		c.Path = "/bin/sh"
		c.ExtraFiles = []*os.File{listener, unknown}
		c.Env = append(c.Env, "LISTEN_FDS=2", "LISTEN_FDNAMES=wcache:s-0123456789abcdef-0", "NOTIFY_SOCKET="+notify, "WATCHDOG_USEC=300000", "WCACHE_FDSTORE=64")
	}, "serve", "--state", dir, "--config", "wcache.toml")
	m.says(t, `msg="engines may not reach this daemon"`)
	m.says(t, `msg="descriptor is dropped"`)
	m.says(t, "msg=serving")
	_, kept, err := client.Engine(t.Context(), socket, encoded(t, protocol.Watch))
	if err != nil {
		t.Fatal(err)
	}
	m.says(t, "msg=watch ")
	_ = manager.Close()
	_ = os.Remove(notify)
	dialled(t, socket, encoded(t, protocol.Watch))
	m.says(t, `msg="watch would not outlive the daemon"`)
	_ = kept.Close()
	m.says(t, `msg="descriptor stays in the store"`)
	m.says(t, `msg="watchdog is not told"`)
}

// takeAll reads messages and closes the descriptors that come with them, which is
// what a barrier waits for.
func takeAll(c *net.UnixConn) {
	data, control := make([]byte, 4096), make([]byte, 4096)
	for {
		_, n, _, _, err := c.ReadMsgUnix(data, control)
		if err != nil {
			return
		}
		messages, _ := unix.ParseSocketControlMessage(control[:n])
		for _, x := range messages {
			fds, _ := unix.ParseUnixRights(&x)
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
	}
}

// TestManualOthers: a process of another user, and one of another pid namespace.
func TestManualOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be two users, and .ci/run is root; the other messages need none")
	}
	const nobody = 65534
	dir := manualDir(t)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	socket := filepath.Join(dir, "s.sock")
	m := startManual(t, dir, func(c *exec.Cmd) {
		c.ExtraFiles, c.Path = []*os.File{self}, "/proc/self/fd/3"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}, "serve", "--listen", socket, "--state", dir)
	m.says(t, "msg=serving")
	dialled(t, socket, nil)
	m.says(t, `msg="connection refused"`)
	m.says(t, "of uid 0 is not this user's")

	dir = manualDir(t)
	socket = filepath.Join(dir, "s.sock")
	m = startManual(t, dir, nil, "serve", "--listen", socket, "--state", dir)
	m.says(t, "msg=serving")
	wire, err := filepath.Abs("../../testdata/wire/0.33.0-get_state-llama-tp1r0.bin")
	if err != nil {
		t.Fatal(err)
	}
	engine := exec.Command(self.Name(), socket, wire)
	engine.Args[0] = "engine"
	engine.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := engine.CombinedOutput()
	if err != nil {
		t.Skipf("no pid namespace: %v %s; TestBarriers of daemon has the other barriers", err, out)
	}
	const want = "mismatch: the engine is in another pid namespace, where it can't reach this process's memory: run the two in one, such as with --pid=host, or set handles = \"value\" in wcache.toml\n"
	if string(out) != want {
		t.Errorf("got %s", out)
	}
}

// TestManualTensors: two of the refusals that a checkpoint's tensors bring about.
func TestManualTensors(t *testing.T) {
	dir := manualDir(t)
	config, err := os.ReadFile("../../testdata/checkpoints/mistral/config.json")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), string(config))
	tests := []struct {
		header string
		bytes  int
		want   string
	}{
		{`{"model.embed_tokens.weight":{"dtype":"I8","shape":[259,64],"data_offsets":[0,16576]}}`, 16576, `tensor "model.embed_tokens.weight" of model.safetensors has type I8, no floating-point type that vLLM would cast as is`},
		{`{"lm_head.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"output.weight":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}}`, 4, `tensors "lm_head.weight" and "output.weight" are the same to MistralForCausalLM`},
	}
	for _, tt := range tests {
		size := binary.LittleEndian.AppendUint64(nil, uint64(len(tt.header)))
		write(t, filepath.Join(dir, "model.safetensors"), string(size)+tt.header+strings.Repeat("\x00", tt.bytes))
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs, env: func(string) string { return "" }}
		if rc := a.execute(t.Context(), []string{"explain", dir}); rc != 0 || !strings.Contains(out.String(), tt.want) {
			t.Errorf("exit %d, got\n%s%swant %s", rc, out.String(), errs.String(), tt.want)
		}
	}
}

// TestManualDoctor: the beginning of a uuid that two GPUs have.
func TestManualDoctor(t *testing.T) {
	root := t.TempDir()
	for bus, uuid := range map[string]string{"0000:19:00.0": "GPU-3f8a1c2d-0b1e-4c6f-9a7d-5e2b8c4f1a90", "0000:3b:00.0": "GPU-3f8a1c2d-77aa-4c6f-9a7d-5e2b8c4f1a91"} {
		gpu := filepath.Join(root, "proc/driver/nvidia/gpus", bus)
		if err := os.MkdirAll(gpu, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(gpu, "information"), "GPU UUID: \t "+uuid+"\n")
	}
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs, sysroot: root, env: func(string) string { return "" }}
	a.execute(t.Context(), []string{"--gpu", "GPU-3f8a1c2d", "doctor"})
	if want := `"GPU-3f8a1c2d" are 2 GPUs: GPU-3f8a1c2d-0b1e`; !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s%swant %s", out.String(), errs.String(), want)
	}
}

// TestManualWords is for messages of moments that a test can't produce.
func TestManualWords(t *testing.T) {
	if got, want := (&cache.InUse{ID: "28dd04106153"}).Error(), "evict entry 28dd04106153: it is being handed out or verified"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
