// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/tensor"
)

// message is a recorded message and what its description says is in it.
type message struct {
	name      string
	frame     []byte
	direction string
	fields    object
}

func (m *message) pickle() []byte { return m.frame[8:] }

// recorded is every message in testdata/wire that goes this way.
func recorded(t testing.TB, direction string) []message {
	t.Helper()
	paths, err := filepath.Glob("../testdata/wire/*.bin")
	if err != nil {
		t.Fatal(err)
	}
	var list []message
	for _, path := range paths {
		frame, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(strings.TrimSuffix(path, ".bin") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var about struct {
			Direction string
			Fields    object
		}
		if err := json.Unmarshal(text, &about); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if about.Direction == direction {
			list = append(list, message{strings.TrimSuffix(filepath.Base(path), ".bin"), frame, about.Direction, about.Fields})
		}
	}
	if len(list) == 0 {
		t.Fatalf("no recorded message %s", direction)
	}
	return list
}

// object is a JSON object in order. Its values are nil, bool, int64, float64,
// string, []any and object.
type object []fingerprint.Field

func (o object) get(name string) any {
	for _, f := range o {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

func (o *object) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := value(d)
	*o, _ = v.(object)
	return err
}

func value(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		if i, err := token.Int64(); err == nil {
			return i, nil
		}
		return token.Float64()
	case json.Delim:
		var o object
		var list []any
		for d.More() {
			var name any
			if token == '{' {
				if name, err = d.Token(); err != nil {
					return nil, err
				}
			}
			v, err := value(d)
			if err != nil {
				return nil, err
			}
			if token == '{' {
				o = append(o, fingerprint.Field{Name: name.(string), Value: v})
			} else {
				list = append(list, v)
			}
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if token == '{' {
			return o, nil
		}
		return list, nil
	}
	return token, nil
}

// plainJSON turns the description of a key's value into the value.
func plainJSON(v any) any {
	o, ok := v.(object)
	if !ok {
		return v
	}
	list, _ := o.get("__tuple__").([]any)
	t := make(fingerprint.Tuple, len(list))
	for i := range list {
		t[i] = plainJSON(list[i])
	}
	return t
}

// described is the request that a message's description tells of.
func described(t *testing.T, m message) *Request {
	t.Helper()
	req := &Request{Cmd: m.fields.get("cmd").(string)}
	req.IsReload, _ = m.fields.get("is_reload").(bool)
	for _, name := range []string{"cache_config", "cache_key"} {
		key, ok := m.fields.get(name).(object)
		if !ok {
			continue
		}
		req.KeyField, req.HasKey = name, true
		var fields []fingerprint.Field
		for _, f := range key {
			if f.Name == "__class__" {
				req.Module = strings.TrimSuffix(f.Value.(string), "."+keyClass)
				continue
			}
			fields = append(fields, fingerprint.Field{Name: f.Name, Value: plainJSON(f.Value)})
		}
		var err error
		if req.Key, err = fingerprint.NewKey(fields); err != nil {
			t.Fatal(err)
		}
	}
	return req
}

// equalKeys compares keys field by field, in order.
var equalKeys = cmp.Transformer("fields", fingerprint.Key.Fields)

func TestRecordedRequests(t *testing.T) {
	for _, m := range recorded(t, "engine->daemon") {
		t.Run(m.name, func(t *testing.T) {
			b, err := ReadFrame(bytes.NewReader(m.frame), MaxRequest)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeRequest(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(described(t, m), got, equalKeys); diff != "" {
				t.Error(diff)
			}

			again, err := EncodeRequest(got)
			if err != nil {
				t.Fatal(err)
			}
			// Python noticed that two of this key's values are one object.
			if m.name != "0.33.0-get_state-allfields" && !bytes.Equal(again, b) {
				t.Errorf("written anew: %q\n     recorded: %q", again, b)
			}
			back, err := DecodeRequest(again)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, back, equalKeys); diff != "" {
				t.Errorf("written and read anew: %s", diff)
			}
		})
	}
}

func TestRecordedReplies(t *testing.T) {
	for _, m := range recorded(t, "daemon->engine") {
		t.Run(m.name, func(t *testing.T) {
			b, err := ReadFrame(bytes.NewReader(m.frame), MaxReply)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeReply(b)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Entries { // what torch.save wrote is not ours to read
				if e := &got.Entries[i]; e.Saved != nil {
					e.Saved = nil
				} else if e.Handle == nil {
					t.Errorf("%s: has neither bytes nor a handle", e.Name)
				}
			}
			if diff := cmp.Diff(describedReply(t, m), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// describedReply is the reply that a message's description tells of, without the
// bytes that torch.save wrote.
func describedReply(t *testing.T, m message) *Reply {
	t.Helper()
	r := new(Reply)
	for _, f := range m.fields {
		switch f.Name {
		case "status":
			r.Status = f.Value.(string)
		case "message":
			r.Message = f.Value.(string)
		case "fields":
			for _, s := range f.Value.([]any) {
				r.Fields = append(r.Fields, s.(string))
			}
		case "memory_bytes":
			r.HasMemory, r.MemoryBytes = true, f.Value.(int64)
		case "gpu_uuid":
			r.GPUUUID = f.Value.(string)
		case "aliases":
			r.Aliases = []tensor.Alias{}
			for _, a := range f.Value.(object) {
				r.Aliases = append(r.Aliases, tensor.Alias{Name: a.Name, Target: a.Value.(string)})
			}
		case "attrs":
			r.HasAttrs, r.Attrs = true, []tensor.Attr{}
			for _, a := range f.Value.(object) {
				r.Attrs = append(r.Attrs, tensor.Attr{Name: a.Name, Value: a.Value.(bool)})
			}
		case "entries":
			for _, e := range f.Value.(object) {
				r.Entries = append(r.Entries, describedEntry(t, e.Name, e.Value.(object)))
			}
		default:
			t.Fatalf("description has %q", f.Name)
		}
	}
	return r
}

func describedEntry(t *testing.T, name string, o object) Entry {
	t.Helper()
	numbers := func(v any) []int64 {
		list := []int64{}
		for _, n := range v.([]any) {
			list = append(list, n.(int64))
		}
		return list
	}
	e := Entry{Name: name, Kind: tensor.Kind(o.get("kind").(string))}
	if x, ok := o.get("cpu_tensor").(object); ok {
		e.Shape, e.Stride = numbers(x.get("shape")), numbers(x.get("stride"))
		e.Offset = x.get("storage_offset").(int64)
		return e
	}
	args := o.get("ipc_args").(object).get("__tuple__").([]any)
	var err error
	if e.DType, err = tensor.ParseTorch(args[5].(object).get("__dtype__").(string)); err != nil {
		t.Fatal(err)
	}
	e.Shape = numbers(args[1].(object).get("__torch.Size__"))
	e.Stride = numbers(args[2].(object).get("__tuple__"))
	e.Offset = args[3].(int64)
	if e.Handle, err = hex.DecodeString(args[7].(object).get("__bytes_hex__").(string)); err != nil {
		t.Fatal(err)
	}
	e.Bytes, e.HandleOffset = args[8].(int64), args[9].(int64)
	return e
}

// TestRecordedBytes checks that simple replies are those of vLLM's own daemon,
// byte for byte.
func TestRecordedBytes(t *testing.T) {
	simple := map[string][]byte{
		"reply-error":         Error("Weights were released"),
		"reply-error-unknown": UnknownCommand("frobnicate"),
		"reply-mismatch":      Mismatch([]string{"dtype", "vllm_version"}),
		"reply-memory":        Memory(16060522496),
		"reply-ok":            OK(),
	}
	compared := 0
	for _, m := range recorded(t, "daemon->engine") {
		_, what, _ := strings.Cut(m.name, "-")
		b, ok := simple[what]
		if !ok {
			continue
		}
		compared++
		var frame bytes.Buffer
		if err := WriteFrame(&frame, b); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame.Bytes(), m.frame) {
			t.Errorf("%s:\n got %q\nwant %q", m.name, frame.Bytes(), m.frame)
		}
	}
	if compared != 18 {
		t.Errorf("%d replies were compared, not 18", compared)
	}
}
