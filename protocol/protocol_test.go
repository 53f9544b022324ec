// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// TestReadFrame is about frames that are too long, cut short, or slow (case P1).
func TestReadFrame(t *testing.T) {
	long := strings.Repeat("x", 3*firstRead)
	for _, tt := range []struct {
		name, in  string
		limit     int64
		want, err string
	}{
		{"empty", "\x00\x00\x00\x00\x00\x00\x00\x00", 10, "", ""},
		{"whole", "\x00\x00\x00\x00\x00\x00\x00\x03abc", 3, "abc", ""},
		{"one more follows", "\x00\x00\x00\x00\x00\x00\x00\x03abcd", 3, "abc", ""},
		{"in several reads", "\x00\x00\x00\x00\x00\x00\xc0\x00" + long, MaxRequest, long, ""},
		{"nothing", "", 10, "", "read frame: EOF"},
		{"length cut short", "\x00\x00\x00", 10, "", "read frame: unexpected EOF"},
		{"only a length", "\x00\x00\x00\x00\x00\x00\x00\x03", 10, "", "read frame: unexpected EOF"},
		{"cut short", "\x00\x00\x00\x00\x00\x00\x00\x03ab", 10, "", "read frame: unexpected EOF"},
		{"over the limit", "\x00\x00\x00\x00\x00\x00\x00\x04abcd", 3, "", "read frame: message of 4 bytes is over the limit of 3"},
		{"2^40 bytes", "\x00\x00\x01\x00\x00\x00\x00\x00abcd", MaxRequest, "", "read frame: message of 1099511627776 bytes is over the limit of 1048576"},
		{"2^64-1 bytes", "\xff\xff\xff\xff\xff\xff\xff\xffabcd", MaxReply, "", "read frame: message of 18446744073709551615 bytes is over the limit of 17179869184"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
				b, err := ReadFrame(r, tt.limit)
				if tt.err != "" {
					if b != nil || err == nil || err.Error() != tt.err {
						t.Errorf("%d bytes, error %v, want %s", len(b), err, tt.err)
					}
					continue
				}
				if err != nil || string(b) != tt.want {
					t.Errorf("%d bytes, error %v, want %d", len(b), err, len(tt.want))
				}
			}
		})
	}
}

func TestReadFrameErrors(t *testing.T) {
	var size *FrameSizeError
	_, err := ReadFrame(strings.NewReader("\x00\x00\x00\x00\x00\x00\x00\x04"), 3)
	if !errors.As(err, &size) || *size != (FrameSizeError{4, 3}) {
		t.Errorf("too long: %v", err)
	}
	if _, err := ReadFrame(iotest.TimeoutReader(strings.NewReader("\x00\x00\x00\x00\x00\x00\x00\x04abcd")), 9); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("the reader's error: %v", err)
	}
	if err := WriteFrame(iotest.TruncateWriter(failing{}, 1), nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the writer's error: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestFrameMemory checks that a frame takes memory as it arrives.
func TestFrameMemory(t *testing.T) {
	in := "\x00\x00\x00\x03\xff\xff\xff\xff" + "four"
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		if _, err := ReadFrame(strings.NewReader(in), MaxReply); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	took := (after.TotalAlloc - before.TotalAlloc) / times
	if took > 4*firstRead {
		t.Errorf("%d bytes were taken for 4 of the 16 GiB that were announced", took)
	}
}

func key(t testing.TB, fields ...fingerprint.Field) fingerprint.Key {
	t.Helper()
	k, err := fingerprint.NewKey(fields)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestNextRelease is about keys of releases that are not known (case P8): fields
// that are new, missing, in another order, in another module.
func TestNextRelease(t *testing.T) {
	known := fingerprint.Field{Name: "checkpoint", Value: "d0b480a03b1c2a44061558d5eab5335f"}
	for _, tt := range []struct {
		name string
		req  Request
	}{
		{"unknown fields", Request{Module: "vllm.weights.protocol", Key: key(t, known,
			fingerprint.Field{Name: "cp_size", Value: int64(2)},
			fingerprint.Field{Name: "kv_scale", Value: 1.5},
			fingerprint.Field{Name: "layers", Value: fingerprint.Tuple{int64(1), fingerprint.Tuple{"a", nil, true}, fingerprint.Tuple{}}},
		)}},
		{"no field that is known", Request{Module: "m", Key: key(t, fingerprint.Field{Name: "model", Value: "x"})}},
		{"one field", Request{Module: DefaultModule, Key: key(t, known)}},
		{"no fields", Request{Module: DefaultModule, Key: key(t)}},
		{"long values", Request{Module: DefaultModule, Key: key(t, fingerprint.Field{Name: strings.Repeat("n", 256), Value: strings.Repeat("v", 70000)})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.req
			want.Cmd, want.KeyField, want.HasKey, want.IsReload = GetState, "cache_key", true, true
			b, err := EncodeRequest(&want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeRequest(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got, equalKeys); diff != "" {
				t.Error(diff)
			}
		})
	}
}

type item = pickle.Item

func instance(class string, state any) *pickle.Object {
	return &pickle.Object{Class: pickle.Global{Module: "m", Name: class}, Args: pickle.Tuple{}, State: state}
}

func request(items ...item) any { return &pickle.Dict{Items: items} }

// TestWithoutKey is about a get_state whose key is missing or something else.
func TestWithoutKey(t *testing.T) {
	state := item{Key: "cmd", Value: GetState}
	for _, tt := range []struct {
		name  string
		in    any
		reply string
	}{
		{"0.30", request(state), "Missing cache_config"},
		{"0.30, none", request(state, item{Key: "cache_config"}), "Missing cache_config"},
		{"0.33, none", request(state, item{Key: "cache_key"}), "Missing cache_key"},
		{"0.33, a string", request(state, item{Key: "cache_key", Value: "x"}), "Missing cache_key"},
		{"0.33, no key but its flag", request(state, item{Key: "is_reload", Value: false}), "Missing cache_key"},
		{"0.33, key of 0.30 in it", request(state, item{Key: "is_reload", Value: false},
			item{Key: "cache_config", Value: instance(keyClass, &pickle.Dict{})}), "Missing cache_key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := pickle.Encode(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			req, err := DecodeRequest(b)
			if err != nil || req.HasKey || req.Module != "" {
				t.Fatalf("request %+v, error %v", req, err)
			}
			if got, err := DecodeReply(MissingKey(req)); err != nil || got.Status != StatusError || got.Message != tt.reply {
				t.Errorf("answer %+v, %v", got, err)
			}
		})
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	state := item{Key: "cmd", Value: GetState}
	keyed := func(v any) any { return request(state, item{Key: "cache_key", Value: v}) }
	field := func(v any) any { return keyed(instance(keyClass, &pickle.Dict{Items: []item{{Key: "a", Value: v}}})) }
	for _, tt := range []struct {
		name string
		in   any
		want string
	}{
		{"a list", &pickle.List{}, "not a dict"},
		{"no command", request(), "it has no command"},
		{"command of none", request(item{Key: "cmd"}), "it has no command"},
		{"reload of an int", request(state, item{Key: "is_reload", Value: int64(1)}), "is_reload is not a bool"},
		{"another class", keyed(instance("TensorEntry", nil)), `decode pickle: global "TensorEntry" of module "m" is not allowed`},
		{"a function", keyed(&pickle.Call{Func: pickle.Global{Module: "posix", Name: "system"}, Args: pickle.Tuple{"true"}}),
			`decode pickle: global "system" of module "posix" is not allowed`},
		{"a module of another alphabet", keyed(&pickle.Object{Class: pickle.Global{Module: "m\nx", Name: keyClass}, Args: pickle.Tuple{}}),
			`decode pickle: global "WeightCacheKey" of module "m\nx" is not allowed`},
		{"key without fields", keyed(instance(keyClass, nil)), "WeightCacheKey has no named fields"},
		{"key with a list of fields", keyed(instance(keyClass, &pickle.List{})), "WeightCacheKey has no named fields"},
		{"key with arguments", keyed(&pickle.Object{Class: pickle.Global{Module: "m", Name: keyClass}, Args: pickle.Tuple{nil}, State: &pickle.Dict{}}),
			"WeightCacheKey has no named fields"},
		{"field of bytes", field([]byte{1}), `field "a" of WeightCacheKey: value of a type that keys don't have: []uint8`},
		{"field of a dict", field(pickle.Tuple{&pickle.Dict{}}), `field "a" of WeightCacheKey: value of a type that keys don't have: *pickle.Dict`},
		{"field of a key", field(instance(keyClass, nil)), `field "a" of WeightCacheKey: value of a type that keys don't have: *pickle.Object`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := pickle.Encode(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			req, err := DecodeRequest(b)
			if req != nil || err == nil {
				t.Fatalf("request %+v, error %v", req, err)
			}
			if got := strings.TrimPrefix(err.Error(), "decode request: "); got != tt.want {
				t.Errorf("error %q\n want %q", got, tt.want)
			}
		})
	}
	for _, in := range []string{"", "\x80\x05", "{\"cmd\": \"get_state\"}", strings.Repeat("x", MaxRequest+1)} {
		if req, err := DecodeRequest([]byte(in)); err == nil {
			t.Errorf("%.20q was read: %+v", in, req)
		}
	}
}

// TestListField checks that a field of a list is taken as one of a tuple.
func TestListField(t *testing.T) {
	b, err := pickle.Encode(request(item{Key: "cmd", Value: GetState}, item{Key: "cache_key", Value: instance(keyClass, &pickle.Dict{Items: []item{
		{Key: "layers", Value: &pickle.List{Items: []any{int64(1), "a"}}},
	}})}))
	if err != nil {
		t.Fatal(err)
	}
	req, err := DecodeRequest(b)
	if err != nil {
		t.Fatal(err)
	}
	want := []fingerprint.Field{{Name: "layers", Value: fingerprint.Tuple{int64(1), "a"}}}
	if diff := cmp.Diff(want, req.Key.Fields()); diff != "" {
		t.Error(diff)
	}
}

func TestReplies(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply []byte
		want  Reply
	}{
		{"ok", OK(), Reply{Status: StatusOK}},
		{"no memory", Memory(0), Reply{Status: StatusOK, HasMemory: true}},
		{"much memory", Memory(math.MaxInt64), Reply{Status: StatusOK, HasMemory: true, MemoryBytes: math.MaxInt64}},
		{"mismatch of nothing", Mismatch(nil), Reply{Status: StatusMismatch, Fields: []string{}}},
		{"one field", Mismatch([]string{"dtype"}), Reply{Status: StatusMismatch, Fields: []string{"dtype"}}},
		{"field and reason", Mismatch([]string{"checkpoint", "no model here; add a root"}),
			Reply{Status: StatusMismatch, Fields: []string{"checkpoint", "no model here; add a root"}}},
		{"bytes that are no text", Error("open \"\xff\": no"), Reply{Status: StatusError, Message: "open \"\uFFFD\": no"}},
		{"long message", Error(strings.Repeat("ä", 40000)), Reply{Status: StatusError, Message: strings.Repeat("ä", 40000)}},
	} {
		got, err := DecodeReply(tt.reply)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if diff := cmp.Diff(&tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// cuda is a form that describes every tensor by one handle.
type cuda struct{}

func (cuda) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x := &t.Tensors[i]
	s := t.Storages[x.Storage]
	size := pickle.Tuple{}
	for _, n := range x.Shape {
		size = append(size, n)
	}
	enc.Name("ipc_args")
	enc.Value(ipcArgs(size, s.Bytes, s.Offset))
	enc.Name("cpu_tensor")
	enc.None()
	return nil
}

func ipcArgs(size pickle.Tuple, bytes, offset int64) pickle.Tuple {
	return pickle.Tuple{tensorClass, &pickle.Call{Func: sizeClass, Args: pickle.Tuple{size}}, pickle.Tuple{int64(1)}, int64(0), typedStorage,
		pickle.Global{Module: "torch", Name: "uint8"}, int64(0), []byte("handle"), bytes, offset, false, []byte("/x"), int64(0), make([]byte, 64), false}
}

// TestManyTensors is about a reply of several batches and frames.
func TestManyTensors(t *testing.T) {
	const n = 1100
	table := &tensor.Table{Segment: n * tensor.Alignment}
	want := &Reply{Status: StatusOK, Attrs: []tensor.Attr{}, HasAttrs: true}
	for i := range int64(n) {
		x := tensor.Tensor{Name: fmt.Sprintf("layers.%d.weight", i), Kind: tensor.Param, DType: tensor.U8, Shape: []int64{i % 200}, Stride: []int64{1}, Storage: int(i)}
		s := tensor.Storage{Offset: i * tensor.Alignment, Bytes: i % 200}
		table.Tensors, table.Storages = append(table.Tensors, x), append(table.Storages, s)
		table.Aliases = append(table.Aliases, tensor.Alias{Name: fmt.Sprintf("alias.%d", i), Target: x.Name})
		want.Entries = append(want.Entries, Entry{Name: x.Name, Kind: x.Kind, DType: x.DType, Shape: x.Shape, Stride: x.Stride,
			Storage: Storage{Handle: []byte("handle"), Bytes: s.Bytes, HandleOffset: s.Offset}})
	}
	want.Aliases = table.Aliases
	m, err := EncodeState(State{Module: DefaultModule, Table: table, Attrs: true}, cuda{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeReply(m[0].Bytes) // which is all of it
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeReplyRefuses(t *testing.T) {
	reply := func(items ...item) any { return request(append([]item{{Key: "status", Value: "ok"}}, items...)...) }
	entry := func(state ...item) any {
		return reply(item{Key: "entries", Value: request(item{Key: "w", Value: instance(entryClass, request(state...))})})
	}
	param := item{Key: "kind", Value: "param"}
	ipc := func(change func(args pickle.Tuple)) any {
		args := ipcArgs(pickle.Tuple{int64(1)}, 1, 0)
		change(args)
		return entry(param, item{Key: "ipc_args", Value: args})
	}
	cpu := func(f pickle.Global, args ...any) any {
		storage := &pickle.Call{Func: rebuildStorage, Args: pickle.Tuple{&pickle.Call{Func: f, Args: args}, pickle.Global{Module: "torch", Name: "uint8"}}}
		hooks := &pickle.Call{Func: orderedDict, Args: pickle.Tuple{}}
		whole := &pickle.Call{Func: rebuildTensor, Args: pickle.Tuple{storage, int64(0), pickle.Tuple{}, pickle.Tuple{}, false, hooks}}
		return entry(param, item{Key: "cpu_tensor", Value: whole})
	}
	u8 := pickle.Global{Module: "torch", Name: "uint8"}
	for _, tt := range []struct {
		name string
		in   any
		want string
	}{
		{"a string", "ok", "not a dict"},
		{"no status", request(), `status ""`},
		{"another status", request(item{Key: "status", Value: "fine"}), `status "fine"`},
		{"status of an int", request(item{Key: "status", Value: int64(1)}), "status: is a int64, not a string"},
		{"fields of a string", reply(item{Key: "fields", Value: "dtype"}), "fields: is a string, not a *pickle.List"},
		{"field of none", reply(item{Key: "fields", Value: &pickle.List{Items: []any{nil}}}), "fields: is a <nil>, not a string"},
		{"memory of a float", reply(item{Key: "memory_bytes", Value: 1.5}), "memory_bytes: is a float64, not a int64"},
		{"alias of an int", reply(item{Key: "aliases", Value: request(item{Key: "a", Value: int64(1)})}), `aliases: "a": is a int64, not a string`},
		{"entries of a list", reply(item{Key: "entries", Value: &pickle.List{}}), "entries: is a *pickle.List, not a *pickle.Dict"},
		{"a function", reply(item{Key: "x", Value: pickle.Global{Module: "posix", Name: "system"}}), `decode pickle: global "system" of module "posix" is not allowed`},
		{"entry of a tensor", reply(item{Key: "entries", Value: request(item{Key: "w", Value: &pickle.Object{Class: tensorClass, Args: pickle.Tuple{}, State: &pickle.Dict{}}})}),
			`entries: "w": instance of torch.Tensor`},
		{"no kind", entry(), `entries: "w": kind is neither "param" nor "buffer"`},
		{"no data", entry(param), `entries: "w": neither ipc_args nor cpu_tensor, or both`},
		{"ipc of fourteen", entry(param, item{Key: "ipc_args", Value: ipcArgs(nil, 0, 0)[:14]}), `entries: "w": 14 ipc_args, or not of a tensor`},
		{"ipc without a size", ipc(func(a pickle.Tuple) { a[1] = pickle.Tuple{int64(1)} }), `entries: "w": shape: no call of torch.Size with 1 arguments`},
		{"ipc of 17 dimensions", ipc(func(a pickle.Tuple) { a[2] = make(pickle.Tuple, 17) }), `entries: "w": stride: 17 dimensions`},
		{"ipc without a type", ipc(func(a pickle.Tuple) { a[5] = nil }), `entries: "w": element type is not a name`},
		{"ipc of a class as type", ipc(func(a pickle.Tuple) { a[5] = tensorClass }), `entries: "w": parse torch dtype: unknown "torch.Tensor"`},
		{"ipc without a handle", ipc(func(a pickle.Tuple) { a[7] = "handle" }), `entries: "w": handle: is a string, not a []uint8`},
		{"cpu of another function", entry(param, item{Key: "cpu_tensor", Value: &pickle.Call{Func: orderedDict, Args: pickle.Tuple{}}}),
			`entries: "w": no call of torch._utils._rebuild_tensor_v2 with 6 arguments`},
		{"mapped shared", cpu(fromFile, "/x", true, int64(1)), `entries: "w": storage: made by torch.UntypedStorage.from_file with 3 arguments`},
		{"part of a buffer", cpu(fromBuffer, []byte("ab"), "little", int64(1), int64(0), u8), `entries: "w": storage: count 1 and offset 0 of 2 bytes`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := pickle.Encode(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			r, err := DecodeReply(b)
			if r != nil || err == nil {
				t.Fatalf("reply %+v, error %v", r, err)
			}
			if got := strings.TrimPrefix(err.Error(), "decode reply: "); got != tt.want {
				t.Errorf("error %q\n want %q", got, tt.want)
			}
		})
	}
}

// TestUnknownCommand compares with the repr of CPython 3.11.
func TestUnknownCommand(t *testing.T) {
	for _, tt := range []struct{ cmd, want string }{
		{"", `''`},
		{"x", `'x'`},
		{"it's", `"it's"`},
		{`say "x"`, `'say "x"'`},
		{`it's "x"`, `'it\'s "x"'`},
		{"a\\b\n\r\t\x00\x7f", `'a\\b\n\r\t\x00\x7f'`},
		{"модель é", `'модель é'`},
		{"\u00a0\u00ad\u2028\u200b", `'\xa0\xad\u2028\u200b'`},
		{"\U0001f600\U000e0001", `'😀\U000e0001'`},
	} {
		got, err := DecodeReply(UnknownCommand(tt.cmd))
		if err != nil || got.Message != "Unknown command "+tt.want {
			t.Errorf("%q: %v, want %s, error %v", tt.cmd, got, tt.want, err)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, m := range recorded(b, "engine->daemon") {
		if m.name != "0.33.0-get_state-llama-tp1r0" {
			continue
		}
		b.ReportAllocs()
		for b.Loop() {
			p, err := ReadFrame(bytes.NewReader(m.frame), MaxRequest)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := DecodeRequest(p); err != nil {
				b.Fatal(err)
			}
		}
	}
}
