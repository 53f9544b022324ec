// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
)

func TestRead(t *testing.T) {
	const status = `{"method":"status"}`
	tests := []struct {
		name, in string
		want     []string // methods read, then the error
	}{
		{"one", status + "\n", []string{"status", "EOF"}},
		{"two", status + "\n" + `{"method":"evict","evict":{"force":true}}` + "\n", []string{"status", "evict", "EOF"}},
		{"fields of a later version", `{"method":"status","since":"tomorrow"}` + "\n", []string{"status", "EOF"}},
		{"longer than a buffer", `{"method":"status","x":"` + strings.Repeat("x", 1<<15) + "\"}\n", []string{"status", "EOF"}},
		{"nothing", "", []string{"EOF"}},
		{"cut short", status[:9], []string{"read control line: unexpected EOF"}},
		{"without its end", status, []string{"read control line: unexpected EOF"}},
		{"no JSON", "status\n", []string{"read control line: invalid character 's' looking for beginning of value"}},
		{"another type", "[]\n", []string{"read control line: json: cannot unmarshal array into Go value of type control.Request"}},
		{"too long", strings.Repeat(" ", control.MaxRequest) + "\n", []string{"read control line: over the limit of 65536 bytes"}},
		{"too long, without an end", strings.Repeat(" ", control.MaxRequest+1), []string{"read control line: over the limit of 65536 bytes"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for r := bufio.NewReader(strings.NewReader(tt.in)); ; {
				request, err := control.ReadRequest(r)
				if err != nil {
					got = append(got, err.Error())
					break
				}
				got = append(got, request.Method)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A reply has more room than a request.
func TestReadReply(t *testing.T) {
	read := func(n int) error {
		var reply control.Reply
		return control.Read(bufio.NewReader(strings.NewReader("{}"+strings.Repeat(" ", n-3)+"\n")), &reply)
	}
	if err := read(control.MaxLine); err != nil {
		t.Error(err)
	}
	if err := read(control.MaxLine + 1); err == nil || err.Error() != "read control line: over the limit of 16777216 bytes" {
		t.Errorf("got %v", err)
	}
}

// Other versions read these lines, too: this text may only grow.
func TestWrite(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 31, 7, 0, time.UTC)
	key, err := fingerprint.NewKey([]fingerprint.Field{{Name: "checkpoint", Value: "d0b4"}, {Name: "revision"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		v    any
		want string
	}{
		{"status", control.Request{Method: control.MethodStatus}, `{"method":"status"}`},
		{"warm", control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: "/m", TPSize: 2, TPRank: 1, Release: "0.33.0"}},
			`{"method":"warm","warm":{"model":"/m","tp_size":2,"tp_rank":1,"pp_size":0,"pp_rank":0,"vllm_version":"0.33.0"}}`},
		{"evict all", control.Request{Method: control.MethodEvict, Evict: &control.Evict{}}, `{"method":"evict","evict":{}}`},
		{"error", control.Reply{Final: true, Error: &control.Error{Code: control.CodeInUse, Message: "m", Hint: "h"}},
			`{"final":true,"error":{"code":"in-use","message":"m","hint":"h"}}`},
		{"progress", control.Reply{Progress: &control.Progress{Done: 1, Total: 2, Seconds: 0.5}},
			`{"final":false,"progress":{"done":1,"total":2,"seconds":0.5}}`},
		{"entry", control.Reply{Final: true, Status: &control.Status{
			Schema: control.Schema, Instance: "host", State: "serving", Problems: []string{},
			Entries: []control.Entry{{Key: "k", State: "ready", Engines: []control.Engine{{PID: 5, Comm: "c", Since: at}}, Used: at, Fingerprint: key}},
		}}, `{"final":true,"status":{"schema":1,"instance":"host","state":"serving","version":{"client":""},"socket":"","device":{"kind":""},` +
			`"problems":[],"bytes":0,"counts":{"hits":0,"loads":0,"failed":0,"refused":0,"misses":null,"loaded_bytes":0,"load_seconds":0},"entries":[{"key":"k","model":"","state":"ready","bytes":0,` +
			`"tensors":0,"pinned":false,"engines":[{"pid":5,"comm":"c","since":"2026-11-29T12:31:07Z"}],"waiting":0,"used":"2026-11-29T12:31:07Z",` +
			`"fingerprint":{"checkpoint":"d0b4","revision":null}}]}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := control.Write(&b, tt.v); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want+"\n", b.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteError(t *testing.T) {
	if err := control.Write(broken{}, control.Request{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	if err := control.Write(io.Discard, make(chan int)); err == nil {
		t.Error("a channel was written")
	}
}

func TestPath(t *testing.T) {
	for in, want := range map[string]string{
		"/run/user/1000/vllm_weight_cache/0.sock": "/run/user/1000/vllm_weight_cache/0.control",
		"/s":     "/s.control",
		".sock":  ".sock.control", // without the ending no name would be left
		"a.sock": "a.control",
	} {
		if got := control.Path(in); got != want {
			t.Errorf("Path(%q) = %q, want %q", in, got, want)
		}
	}
}

// A request is bounded, and reading it again gives the same request.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"method":"warm","warm":{"model":"/m","tp_size":2}}` + "\n"))
	f.Add([]byte(`{"method":"evict","evict":{"key":"28dd","force":true}}` + "\n"))
	f.Add([]byte(`{"method":"status"}` + "\n{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := control.ReadRequest(bufio.NewReaderSize(bytes.NewReader(in), 16))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := control.Write(&b, r); err != nil {
			t.Fatal(err)
		}
		if b.Len() > control.MaxRequest {
			return // escapes in JSON make it longer
		}
		again, err := control.ReadRequest(bufio.NewReader(&b))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Error(diff)
		}
	})
}

// A line that was read can be written, and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"method":"warm","warm":{"model":"/m","tp_size":2}}` + "\n"))
	f.Add([]byte(`{"final":true,"error":{"code":"in-use"}}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var r control.Reply
		if err := control.Read(bufio.NewReader(bytes.NewReader(in)), &r); err != nil {
			return
		}
		var b bytes.Buffer
		if err := control.Write(&b, r); err != nil {
			t.Fatal(err)
		}
		var again control.Reply
		if err := control.Read(bufio.NewReader(&b), &again); err != nil {
			t.Fatal(err)
		}
		x, _ := json.Marshal(r)
		y, _ := json.Marshal(again)
		if !bytes.Equal(x, y) {
			t.Errorf("%s became %s", x, y)
		}
	})
}

// If this fails, a code has no series in the metrics until it is found for the first time.
func TestProblemCodes(t *testing.T) {
	text, err := os.ReadFile("testdata/codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, code := range control.ProblemCodes() {
		got.WriteString(string(code) + "\n")
	}
	if diff := cmp.Diff(string(text), got.String()); diff != "" {
		t.Errorf("-testdata/codes.txt +ProblemCodes:\n%s", diff)
	}
}
