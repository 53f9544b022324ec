// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights/hfconfig"
	"github.com/wcache/wcache/weights/safetensors"
)

// The checkpoint hash equals the one that vLLM stored in each golden layout.
func TestCheckpointHashIsVLLMs(t *testing.T) {
	layouts, err := filepath.Glob("../testdata/layouts/*.json")
	if err != nil || len(layouts) == 0 {
		t.Fatalf("no layouts: %v", err)
	}
	got, want := make(map[string]string), make(map[string]string)
	for _, path := range layouts {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var layout struct {
			Key struct {
				Checkpoint string `json:"checkpoint"`
			} `json:"key"`
			Dir string `json:"checkpoint_dir"`
		}
		if err := json.Unmarshal(b, &layout); err != nil {
			t.Fatal(err)
		}
		want[layout.Dir] = layout.Key.Checkpoint
		if _, ok := got[layout.Dir]; !ok {
			got[layout.Dir] = open(t, filepath.Join(checkpoints, layout.Dir)).CheckpointHash(md5.New)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A Python built for FIPS hashes with SHA-256.
func TestCheckpointHashOfAnotherFunction(t *testing.T) {
	dir := model(t, map[string][]byte{"b.safetensors": shard(map[string]byte{"x": 1}), "a.safetensors": shard(nil)})
	sum := sha256.New()
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s%s", name, b[:8+binary.LittleEndian.Uint64(b)])
	}
	if got, want := open(t, dir).CheckpointHash(sha256.New), hex.EncodeToString(sum.Sum(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Case W4, with directories that can be loaded.
func TestFilesAreChosenAsVLLMDoes(t *testing.T) {
	empty := shard(nil)
	index := func(names ...string) []byte {
		files := make(map[string]string)
		for i, name := range names {
			files[fmt.Sprint("t", i)] = name
		}
		b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": files})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name                  string
		files                 map[string][]byte
		hashed, load, ignored []string
	}{
		{
			name:   "no index: all",
			files:  map[string][]byte{"b.safetensors": empty, "a.safetensors": empty, "c.bin": nil, "d.SAFETENSORS": nil},
			hashed: []string{"a.safetensors", "b.safetensors"},
			load:   []string{"a.safetensors", "b.safetensors"},
		},
		{
			name:    "extra file that the index doesn't name",
			files:   map[string][]byte{"model-1.safetensors": empty, "model-2.safetensors": empty, "mtp.safetensors": empty, ShardIndexName: index("model-1.safetensors", "model-2.safetensors", "model-1.safetensors")},
			hashed:  []string{"model-1.safetensors", "model-2.safetensors"},
			load:    []string{"model-1.safetensors", "model-2.safetensors"},
			ignored: []string{"mtp.safetensors"},
		},
		{
			name:    "consolidated beside shards",
			files:   map[string][]byte{"model-1.safetensors": empty, "consolidated.safetensors": empty, ShardIndexName: index("model-1.safetensors")},
			hashed:  []string{"model-1.safetensors"},
			load:    []string{"consolidated.safetensors"},
			ignored: []string{"model-1.safetensors"},
		},
		{
			name:    "consolidated without an index of the others",
			files:   map[string][]byte{"model.safetensors": empty, "consolidated-1.safetensors": empty, "consolidated-2.safetensors": empty},
			hashed:  []string{"consolidated-1.safetensors", "consolidated-2.safetensors", "model.safetensors"},
			load:    []string{"consolidated-1.safetensors", "consolidated-2.safetensors"},
			ignored: []string{"model.safetensors"},
		},
		{
			name:    "consolidated with an index of its own",
			files:   map[string][]byte{"consolidated-1.safetensors": empty, "consolidated-2.safetensors": empty, consolidatedIndexName: index("consolidated-2.safetensors")},
			hashed:  []string{"consolidated-1.safetensors", "consolidated-2.safetensors"},
			load:    []string{"consolidated-2.safetensors"},
			ignored: []string{"consolidated-1.safetensors"},
		},
		{
			name:   "numbers without leading zeros: hash and load differ in order",
			files:  map[string][]byte{"m-10.safetensors": empty, "m-9.safetensors": empty},
			hashed: []string{"m-10.safetensors", "m-9.safetensors"},
			load:   []string{"m-9.safetensors", "m-10.safetensors"},
		},
		{
			name:   "hidden files",
			files:  map[string][]byte{"model.safetensors": empty, "._model.safetensors": []byte("what macOS leaves")},
			hashed: []string{"model.safetensors"},
			load:   []string{"model.safetensors"},
		},
		{
			name:   "other files in subfolders",
			files:  map[string][]byte{"model.safetensors": empty, "original/model.safetensors": nil, "original/consolidated.00.pth": nil},
			hashed: []string{"model.safetensors"},
			load:   []string{"model.safetensors"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := model(t, c.files)
			d := open(t, dir)
			type files struct{ Hashed, Load, Ignored []string }
			if diff := cmp.Diff(files{c.hashed, c.load, c.ignored}, files{bases(d.Hashed), bases(d.Load), d.Ignored}); diff != "" {
				t.Error(diff)
			}
			if err := d.Stale(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Cases W4, W5 and W6, with directories that can't be loaded.
func TestUnusable(t *testing.T) {
	good := shard(map[string]byte{"x": 1})
	for _, c := range []struct {
		name  string
		files map[string][]byte
		links map[string]string
		want  string
	}{
		{"no weights", map[string][]byte{"pytorch_model.bin": nil}, nil,
			`read weights "DIR": holds no .safetensors files; weights in other formats have to be converted`},
		{"no tensors' file but a folder of that name", map[string][]byte{"model.safetensors/x": nil}, nil,
			`read weights "DIR/model.safetensors": is not a regular file; move it out of the model directory`},
		{"missing shards", map[string][]byte{"model-1.safetensors": good, ShardIndexName: []byte(`{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors","c":"model-3.safetensors","d":"model-4.safetensors","e":"model-5.safetensors"}}`)}, nil,
			`read weights "DIR/model.safetensors.index.json": unfinished snapshot: 4 of 5 shards are missing: ["model-2.safetensors" "model-3.safetensors" "model-4.safetensors"] and 1 more; fetch the model again`},
		{"shards in subfolders", map[string][]byte{"sub/model.safetensors": good, "model.safetensors": good, ShardIndexName: []byte(`{"weight_map":{"a":"sub/model.safetensors"}}`)}, nil,
			`read weights "DIR/model.safetensors.index.json": names "sub/model.safetensors", but vLLM loads no files from other folders; move it beside the index and correct its name there`},
		{"shards of another format", map[string][]byte{"model.bin": good, "model.safetensors": good, ShardIndexName: []byte(`{"weight_map":{"a":"model.bin"}}`)}, nil,
			`read weights "DIR/model.safetensors.index.json": names "model.bin", which is not a .safetensors file`},
		{"missing consolidated shard", map[string][]byte{"consolidated-1.safetensors": good, consolidatedIndexName: []byte(`{"weight_map":{"a":"consolidated-2.safetensors"}}`)}, nil,
			`read weights "DIR/consolidated.safetensors.index.json": unfinished snapshot: 1 of 1 shards are missing: ["consolidated-2.safetensors"]; fetch the model again`},
		{"consolidated in a subfolder alone", map[string][]byte{"model.safetensors": good, "original/deep/consolidated.safetensors": good}, nil,
			`read weights "DIR/original/deep/consolidated.safetensors": makes vLLM load consolidated files, of which none is beside config.json; move it out of the model directory`},
		{"index that is none", map[string][]byte{"model.safetensors": good, ShardIndexName: []byte(`[]`)}, nil,
			`read weights "DIR/model.safetensors.index.json": index is not a JSON object: json: cannot unmarshal array into Go value of type map[string]json.RawMessage; fetch it again`},
		{"link to a shard that isn't there", nil, map[string]string{"model.safetensors": "blobs/4e1c"},
			`read weights "DIR/model.safetensors": is a symlink to "DIR/blobs/4e1c", which does not exist; fetch the model again`},
		{"link to an index that isn't there", map[string][]byte{"model.safetensors": good}, map[string]string{ShardIndexName: "/no/blob"},
			`read weights "DIR/model.safetensors.index.json": is a symlink to "/no/blob", which does not exist; fetch the model again`},
		{"damaged header", map[string][]byte{"model.safetensors": good[:len(good)-1]}, nil,
			`read weights "DIR/model.safetensors": read safetensors header: 1 bytes are missing at the end of the file: its tensors take 1, and 0 are there; the file is not complete, fetch it again`},
		{"empty file", map[string][]byte{"model.safetensors": {}}, nil,
			`read weights "DIR/model.safetensors": read safetensors header: a file of 0 bytes has no room for the header's length; the file is not complete, fetch it again`},
		{"name that isn't UTF-8", map[string][]byte{"\xff.safetensors": good}, nil,
			`read weights "DIR/\xff.safetensors": has a name that is not UTF-8, which vLLM can't hash; rename it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := model(t, c.files)
			for name, to := range c.links {
				symlink(t, to, filepath.Join(dir, name))
			}
			d, err := Open(dir)
			var unusable *Unusable
			if d != nil || !errors.As(err, &unusable) {
				t.Fatalf("got %v and %v, want an Unusable", d, err)
			}
			if diff := cmp.Diff(c.want, relative(err.Error(), dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUnusableDirectories(t *testing.T) {
	dir := model(t, map[string][]byte{"model.safetensors": shard(nil)})
	if err := os.Remove(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/none":              `read weights "DIR/none": does not exist`,
		dir + "/model.safetensors": `read weights "DIR/model.safetensors": is a file; give the directory that it is in`,
		dir:                        `read weights "DIR/config.json": does not exist; vLLM needs it beside the weights`,
	} {
		_, err := Open(path)
		var unusable *Unusable
		if !errors.As(err, &unusable) || relative(err.Error(), dir) != want {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

// A configuration that can't be read has an error of its own, so that the directory is
// not taken for another model's. A value of the wrong type is readable.
func TestUnreadableConfiguration(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"config.json", `{`, "byte 1: no key; fetch it again"},
		{"config.json", `[]`, "not an object; fetch it again"},
		{"config.json", "", "byte 0: text ends early; fetch it again"},
		{"config.json", strings.Repeat(" ", hfconfig.MaxSize+1), "2097153 bytes are over the limit of 2097152; fetch it again"},
		{"config.json", `{"a":` + strings.Repeat("[", 200), "byte 105: more than 100 levels; fetch it again"},
		{"config.json", `{"a":"\ud800"}`, `byte 12: bad \u escape; fetch it again`},
		{"hf_quant_config.json", `{"quantization":`, "byte 16: text ends early; fetch it again"},
		{"config.json", `{"model_type":"llama","bias":null,"vocab_size":"many"}`, ""},
	} {
		dir := model(t, map[string][]byte{"model.safetensors": shard(nil), c.file: []byte(c.text)})
		d, err := Open(dir)
		if c.want == "" {
			if d == nil || err != nil {
				t.Errorf("%s %.20q: got %v, %v", c.file, c.text, d, err)
			}
			continue
		}
		want := fmt.Sprintf("read model \"DIR/%s\": %s", c.file, c.want)
		var unreadable *Unreadable
		if d != nil || !errors.As(err, &unreadable) || relative(err.Error(), dir) != want {
			t.Errorf("%s %.20q: got %v and %v, want an Unreadable: %s", c.file, c.text, d, err, want)
		}
	}
}

// Opening a pipe for reading would wait for a writer.
func TestPipe(t *testing.T) {
	dir := model(t, nil)
	if err := syscall.Mkfifo(filepath.Join(dir, "model.safetensors"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := `read weights "DIR/model.safetensors": is not a regular file; move it out of the model directory`
	if _, err := Open(dir); err == nil || relative(err.Error(), dir) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestFormatErrorIsKept(t *testing.T) {
	_, err := Open(model(t, map[string][]byte{"model.safetensors": []byte("short")}))
	var format *safetensors.FormatError
	if !errors.As(err, &format) {
		t.Errorf("got %v, want a FormatError inside", err)
	}
}

// Case W5: a snapshot's links are followed, and keep their names.
func TestOpenSnapshot(t *testing.T) {
	blob := copyModel(t, "qwen3")
	dir := filepath.Join(t.TempDir(), "snapshot")
	for _, name := range []string{"config.json", "model.safetensors"} {
		symlink(t, filepath.Join(blob, name), filepath.Join(dir, name))
	}
	link := filepath.Join(t.TempDir(), "link")
	symlink(t, dir, link)

	got, want := open(t, link+"/"), open(t, blob)
	if got.CheckpointHash(md5.New) != want.CheckpointHash(md5.New) {
		t.Error("the hash differs")
	}
	if got.Path != link || got.Load[0].Path != filepath.Join(link, "model.safetensors") || got.Load[0].Inode != want.Load[0].Inode {
		t.Errorf("got %+v", got.Load[0])
	}
}

// If several files have a name, Find gives the one that vLLM loads last.
func TestFind(t *testing.T) {
	d := open(t, model(t, map[string][]byte{
		"m-10.safetensors": shard(map[string]byte{"twice": 10}),
		"m-9.safetensors":  shard(map[string]byte{"once": 1}),
		"m-8.safetensors":  shard(map[string]byte{"twice": 8}),
	}))
	u8 := func(name string) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: tensor.U8, Shape: []int64{1}, End: 1}
	}
	type found struct {
		Base   string
		Tensor safetensors.Tensor
	}
	want := []found{{"m-9.safetensors", u8("once")}, {"m-10.safetensors", u8("twice")}}
	var got []found
	for f, x := range d.All() {
		got = append(got, found{f.Base, x})
		if g, y, ok := d.Find(x.Name); g != f || !cmp.Equal(x, y) || !ok {
			t.Errorf("%s: found %v, %v, %v", x.Name, g, y, ok)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if f, x, ok := d.Find("never"); f != nil || ok {
		t.Errorf("found %v, %v", f, x)
	}
	for range d.All() {
		break
	}
}

// Case W7: element types that no model of ours has are carried through.
func TestFindKeepsEveryDType(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.F8E4M3, tensor.F8E5M2, tensor.F8E8M0, tensor.F4, tensor.F6E2M3, tensor.F6E3M2, tensor.U16, tensor.U32, tensor.U64, tensor.C64} {
		n := dtype.Bits() / 2
		header := fmt.Sprintf(`{"x":{"dtype":%q,"shape":[4],"data_offsets":[0,%d]}}`, dtype, n)
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		d := open(t, model(t, map[string][]byte{"model.safetensors": append(file, make([]byte, n)...)}))
		_, x, _ := d.Find("x")
		if diff := cmp.Diff(safetensors.Tensor{Name: "x", DType: dtype, Shape: []int64{4}, End: int64(n)}, x); diff != "" {
			t.Errorf("%v: %s", dtype, diff)
		}
	}
}
