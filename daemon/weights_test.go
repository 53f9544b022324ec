// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/internal/testmain"
)

// on has a server look for models in a folder alone.
func on(root string) func(*setup) {
	return func(s *setup) { s.Config.Roots = []string{root} }
}

// Two directories with equal headers and different weights are not served for
// one another, until the configuration says which is meant.
func TestTwins(t *testing.T) {
	t.Parallel()
	root := private(t)
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	rewrite(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	i := start(t, on(root))
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, i.target, request), fmt.Sprintf(
		"mismatch: checkpoint; 2 model directories have the same headers and different weights: %s, %s (start the engine as: vllm serve %s; or name the one that is meant in wcache.toml: pins = [%q]; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)", a, b, a, a))
	for _, pin := range []string{b, a} {
		do(t, i.configure(func(c *config.Config) { c.Pins = []string{pin} }, nil))
		r := engineAsk(t, i.target, request)
		wantAnswer(t, r, "ok")
		for _, e := range i.status(t).Entries {
			if e.Pinned != (e.Model == pin) || e.Pinned && e.Sure != "pin" {
				t.Errorf("pinned is %s, held is %+v", pin, e)
			}
		}
		if same := cmp.Equal(handedOut(t, r), exported(t, "llama-tp1r0")); same != (pin == a) {
			t.Errorf("pinned is %s, the weights are the other's", pin)
		}
	}
	// Both pinned is as none.
	do(t, i.configure(func(c *config.Config) { c.Pins = []string{a, b} }, nil))
	wantAnswer(t, engineAsk(t, i.target, request), "mismatch: checkpoint; 2 model directories…")
	// Twins of the same weights are one.
	do(t, i.configure(func(c *config.Config) { c.Pins = nil }, nil), os.RemoveAll(b))
	model(t, root, "llama", "b")
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
}

// What is held for a key is not served when a twin comes that the key may mean as
// well, or when one that was equal changes.
func TestTwinComesLater(t *testing.T) {
	t.Parallel()
	root := private(t)
	a := model(t, root, "llama", "a")
	i := start(t, on(root))
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
	b := model(t, root, "llama", "b")
	for range 2 { // of equal weights: the same entry, and no second comparison
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
	}
	if c := i.status(t).Counts; c.Loads != 1 || c.Hits != 2 {
		t.Errorf("counts are %+v", c)
	}
	rewrite(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	want := fmt.Sprintf("mismatch: checkpoint; 2 model directories have the same headers and different weights: %s, %s (…", a, b)
	for range 2 {
		wantAnswer(t, engineAsk(t, i.target, request), want)
	}
	// Who was there while the twin was may have read its headers.
	do(t, os.RemoveAll(b))
	wantAnswer(t, engineAsk(t, i.target, request), fmt.Sprintf("mismatch: checkpoint; it is not certain that %s is meant: %s had the same headers until…", a, b))
	time.Sleep(20 * time.Millisecond) // the kernel tells when a process began to a hundredth of a second
	later := startProcess(t, "engine", i.target)
	later.send(t, request)
	if got := later.line(t); got != "ok" {
		t.Error(got)
	}
	if e := i.entry(t, key(t, "llama-tp1r0")); e == nil || e.Model != a {
		t.Errorf("held is %+v", e)
	}
}

// A file that was written after the load is not what is served to the next engine:
// it is loaded again. An engine that is attached keeps what it has.
func TestStale(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "a")
	i := start(t, on(root))
	k := key(t, "llama-tp1r0")
	engine := startProcess(t, "engine", i.target)
	engine.send(t, getState(t, k))
	if got := engine.line(t); got != "ok" {
		t.Fatal(got)
	}
	rewrite(t, filepath.Join(dir, "model-00003-of-00004.safetensors"))
	r := engineAsk(t, i.target, getState(t, k))
	wantAnswer(t, r, "ok")
	if cmp.Equal(handedOut(t, r), exported(t, "llama-tp1r0")) {
		t.Error("the old weights are served")
	}
	s := i.status(t)
	var states []string
	for _, e := range s.Entries {
		states = append(states, e.State+": "+strings.ReplaceAll(e.Reason, dir, "DIR")+fmt.Sprint(" ", len(e.Engines)))
	}
	want := []string{
		`leaving: check file "DIR/model-00003-of-00004.safetensors": was written 1`,
		"ready: LlamaForCausalLM in torch.bfloat16 is built as vLLM 0.33.0 does 1",
	}
	if diff := cmp.Diff(want, states); diff != "" || s.Counts.Loads != 2 {
		t.Errorf("%d loads, -want +got:\n%s", s.Counts.Loads, diff)
	}
	engine.kill()
	testmain.Eventually(t, "the old ones are freed", func() bool { return len(i.status(t).Entries) == 1 })

	// What decides of how files are read counts too, as does a file that has come.
	do(t, os.WriteFile(filepath.Join(dir, "extra.safetensors"), []byte("damaged"), 0o600))
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok") // no index names it
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	do(t, err, os.WriteFile(filepath.Join(dir, "config.json"), append(text, '\n'), 0o600))
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok")
	if c := i.status(t).Counts; c.Loads != 3 || c.Hits != 1 {
		t.Errorf("counts are %+v", c)
	}
	do(t, os.RemoveAll(dir))
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "mismatch: checkpoint; no model directory…")
	if e := i.entry(t, k); e != nil {
		t.Errorf("what is gone is still served: %+v", e)
	}
}

// A file that is written while it is being loaded is planned anew.
func TestChangedDuringLoad(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "a")
	g := newGate(t)
	i := start(t, func(s *setup) { atGate(g)(s); on(root)(s) })
	shard := filepath.Join(dir, "model-00003-of-00004.safetensors")
	got := later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	open := g.arrived(t)
	rewrite(t, shard)
	open()
	g.arrived(t)()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
	// One who never stops writing is waited for no longer.
	do(t, i.configure(func(c *config.Config) { c.Budget = 0 }, nil))
	rewrite(t, shard)
	got = later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	for range 2 {
		open := g.arrived(t)
		rewrite(t, shard)
		open()
	}
	if got := <-got; !strings.HasPrefix(got, "error: load model: ") || !strings.Contains(got, shard) || !strings.HasSuffix(got, "(wait until nothing writes to it)") {
		t.Error(got)
	}
}

// A file that goes while it is being loaded is the error of that request. Others
// live, and nothing half-loaded stays.
func TestMissingDuringLoad(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "a")
	g := newGate(t)
	i := start(t, func(s *setup) { atGate(g)(s); on(root)(s); s.Loader.Command = append(s.Loader.Command, "early") })
	shard := filepath.Join(dir, "model-00003-of-00004.safetensors")
	got := later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	open := g.arrived(t)
	do(t, os.Rename(shard, shard+".bak"))
	open()
	if got := <-got; !strings.HasPrefix(got, "error: load model: ") && !strings.HasPrefix(got, "mismatch: checkpoint; ") || !strings.Contains(got, shard) {
		t.Error(got)
	}
	if s := i.status(t); len(s.Entries) != 0 || s.Bytes != 0 {
		t.Errorf("left are %+v", s.Entries)
	}
	do(t, os.Rename(shard+".bak", shard))
	got = later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	g.arrived(t)()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
}

// A model that can't be loaded until the user changes something is a mismatch, which an engine
// takes as final, with the path and the fault.
func TestUnusable(t *testing.T) {
	t.Parallel()
	// The key is by path, for directories that have no hash any more.
	tests := []struct {
		name, checkpoint string
		spoil            func(t *testing.T, dir string)
		want             string // with DIR for the directory
	}{
		{"shard that the index names is missing", "llama", func(t *testing.T, dir string) {
			do(t, os.Remove(dir+"/model-00002-of-00004.safetensors"))
		}, `mismatch: checkpoint; read weights "DIR/model.safetensors.index.json": unfinished snapshot: 1 of 4 shards are missing: ["model-00002-of-00004.safetensors"]; fetch the model again`},
		{"shard in a subfolder", "llama", func(t *testing.T, dir string) {
			text, err := os.ReadFile(dir + "/model.safetensors.index.json")
			do(t, err, os.WriteFile(dir+"/model.safetensors.index.json", []byte(strings.ReplaceAll(string(text), "model-00002", "sub/model-00002")), 0o600))
		}, "mismatch: checkpoint; …sub/model-00002…"},
		{"index that isn't JSON", "llama", func(t *testing.T, dir string) {
			do(t, os.WriteFile(dir+"/model.safetensors.index.json", []byte("{"), 0o600))
		}, "mismatch: checkpoint; …DIR/model.safetensors.index.json…"},
		{"no config.json", "llama", func(t *testing.T, dir string) { do(t, os.Remove(dir+"/config.json")) },
			`mismatch: checkpoint; read weights "DIR/config.json": does not exist; vLLM needs it beside the weights`},
		{"header length 0", "qwen2", header(func([]byte) []byte { return make([]byte, 8) }),
			"mismatch: checkpoint; …DIR/model.safetensors…"},
		{"header length 2^63", "qwen2", header(func([]byte) []byte { return binary.LittleEndian.AppendUint64(nil, 1<<63) }),
			"mismatch: checkpoint; …DIR/model.safetensors…"},
		{"header past the file", "qwen2", header(func(b []byte) []byte {
			return append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b[8:]...)
		}), "mismatch: checkpoint; …DIR/model.safetensors…"},
		{"data cut short", "qwen2", header(func(b []byte) []byte { return b[:len(b)-2] }),
			"mismatch: checkpoint; …DIR/model.safetensors…"},
		{"data that may still come", "qwen2", func(t *testing.T, dir string) {
			path := dir + "/model.safetensors"
			info, err := os.Stat(path)
			do(t, err, os.Truncate(path, info.Size()-2))
		}, "error: …DIR/model.safetensors…: 2 bytes are missing at the end of the file: …; it was written a moment ago, wait until it is whole"},
		{"file that is being fetched", "qwen2", func(t *testing.T, dir string) {
			do(t, os.WriteFile(dir+"/model.safetensors.aria2", nil, 0o600))
		}, "error: …DIR/model.safetensors…is being fetched, as \"model.safetensors.aria2\" beside it shows; wait until that is gone"},
		{"FIFO for a file", "qwen2", func(t *testing.T, dir string) {
			do(t, os.Remove(dir+"/model.safetensors"), unix.Mkfifo(dir+"/model.safetensors", 0o600))
		}, "mismatch: checkpoint; …DIR/model.safetensors…is not a regular file…"},
		{"FIFO for the configuration", "qwen2", func(t *testing.T, dir string) {
			do(t, os.Remove(dir+"/config.json"), unix.Mkfifo(dir+"/config.json", 0o600))
		}, "mismatch: checkpoint; …DIR/config.json…"},
		{"tensor of another shape", "qwen2", tensorHeader("model.norm.weight", func(m map[string]any) { m["shape"] = []int{8, 8} }),
			"mismatch: …model.norm.weight…"},
		{"tensor of another dtype", "qwen2", tensorHeader("model.norm.weight", func(m map[string]any) { m["dtype"] = "F16" }),
			"…"},
		{"tensor of a dtype that no one loads", "qwen2", tensorHeader("model.norm.weight", func(m map[string]any) { m["dtype"] = "I16" }),
			"mismatch: …model.norm.weight…"},
		{"tensor that isn't of the model", "qwen2", rename("model.norm.weight", "model.norm.height"),
			"mismatch: …model.norm.height…"},
		{"model id of several roots", "llama", func(*testing.T, string) {}, "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := private(t)
			dir := model(t, root, tt.checkpoint, "m")
			tt.spoil(t, dir)
			other := filepath.Join(root, "other")
			i := start(t, func(s *setup) { s.Config.Roots, s.Config.Pins = []string{root}, []string{other} })
			k := set(t, key(t, tt.checkpoint+"-tp1r0"), "checkpoint", dir)
			wantAnswer(t, engineAsk(t, i.target, getState(t, k)), strings.ReplaceAll(tt.want, "DIR", dir))
			// Such a directory keeps no other from being served that is certain. One that is
			// not may be told apart from it by nothing: see TestChoose in resolve.
			model(t, root, "llama_tied", "other")
			wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama_tied-tp1r0"))), "ok")
		})
	}
}

// header changes the whole of model.safetensors, as of an hour ago.
func header(change func([]byte) []byte) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		path, then := dir+"/model.safetensors", time.Now().Add(-time.Hour)
		b, err := os.ReadFile(path)
		do(t, err, os.WriteFile(path, change(b), 0o600), os.Chtimes(path, then, then))
	}
}

// headerText changes the JSON of its header.
func headerText(t *testing.T, dir string, change func(map[string]any)) {
	header(func(b []byte) []byte {
		n := binary.LittleEndian.Uint64(b)
		var m map[string]any
		do(t, json.Unmarshal(b[8:8+n], &m))
		change(m)
		text, err := json.Marshal(m)
		do(t, err)
		for len(text)%8 != 0 {
			text = append(text, ' ')
		}
		return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), b[8+n:]...)
	})(t, dir)
}

func tensorHeader(name string, change func(map[string]any)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		headerText(t, dir, func(m map[string]any) { change(m[name].(map[string]any)) })
	}
}

func rename(from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		headerText(t, dir, func(m map[string]any) { m[to] = m[from]; delete(m, from) })
	}
}

// A stage without a tensor would have an engine run on empty memory; tensors
// without elements are entries without memory.
func TestEmpty(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "m")
	i := start(t, on(root))
	k := set(t, key(t, "llama_pp-tp1r0-pp2r0"), "checkpoint", dir)
	// More stages than layers leave one with nothing.
	k = set(t, set(t, k, "pp_size", int64(4)), "pp_rank", int64(1))
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "mismatch: pp_…")
}
