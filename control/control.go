// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package control defines the messages on the control socket, as JSON lines: a request
// and then replies, the last of which is final. [Status] is also what
// "wcache status --json" prints: fields are only ever added to it.
package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/fingerprint"
)

// Limits of a line, in bytes.
const (
	// MaxLine is the limit of a reply. A status with thousands of entries and their keys
	// stays below it.
	MaxLine = 16 << 20
	// MaxRequest is the limit of a request, which contains some path and a few words. A
	// daemon may read many requests at once.
	MaxRequest = 64 << 10
)

// Schema is the version of Status. It changes only if a field changes its meaning or is
// removed.
const Schema = 1

// Methods of a Request.
const (
	MethodStatus = "status"
	MethodWarm   = "warm"
	MethodEvict  = "evict"
	MethodVerify = "verify"
	MethodMisses = "misses"
	MethodPing   = "ping" // the daemon answers with an empty reply
)

// Request is a client's request. The field that belongs to the method is set.
type Request struct {
	Method string `json:"method"`
	Warm   *Warm  `json:"warm,omitempty"`
	Evict  *Evict `json:"evict,omitempty"`

	Verify *Verify `json:"verify,omitempty"`
}

// Warm asks for the load that an engine with these options would cause.
type Warm struct {
	Model    string `json:"model"` // an absolute directory, or a model id
	Revision string `json:"revision,omitempty"`
	TPSize   int    `json:"tp_size"` // 0: 1
	TPRank   int    `json:"tp_rank"`
	PPSize   int    `json:"pp_size"` // 0: 1
	PPRank   int    `json:"pp_rank"`
	DType    string `json:"dtype,omitempty"`        // "bfloat16"; "": from the model's configuration
	Release  string `json:"vllm_version,omitempty"` // "": the newest known release
}

// Evict asks to free entries.
type Evict struct {
	Key   string `json:"key,omitempty"` // at least the first digits of a key; "": all
	Force bool   `json:"force,omitempty"`
}

// Reply is one line of an answer. The last one is Final and has an Error, or the
// requested data.
type Reply struct {
	Final    bool      `json:"final"`
	Error    *Error    `json:"error,omitempty"`
	Status   *Status   `json:"status,omitempty"`
	Progress *Progress `json:"progress,omitempty"` // of a warm or verify, before its final line
	Entry    *Entry    `json:"entry,omitempty"`    // of a warm
	Evicted  []string  `json:"evicted,omitempty"`  // keys
	Misses   []Miss    `json:"misses,omitempty"`   // the last few, the latest first

	Verified []Verified `json:"verified,omitempty"` // of a verify, oldest entry first
}

// Codes of an Error.
const (
	CodeFailed     = "failed"
	CodeUsage      = "usage"
	CodeNotRunning = "not-running"
	CodeNoKey      = "no-such-key"
	CodeInUse      = "in-use"
)

// Error is a failure, with advice.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Status describes an instance for people and programs.
type Status struct {
	Schema   int       `json:"schema"`
	Instance string    `json:"instance"`
	State    string    `json:"state"` // "serving", "idle" (not running), "stopping"
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Version  Version   `json:"version"`
	Restart  string    `json:"restart,omitempty"` // RestartKeeps, …; "" if no daemon runs, or an older one
	Socket   string    `json:"socket"`
	Device   Device    `json:"device"`
	// GPU is the driver's last report on the instance's GPU: nil for a host instance, or
	// before the first report.
	GPU      *device.GPU `json:"gpu,omitempty"`
	Problems []string    `json:"problems"`          // what is wrong now, such as a broken configuration
	Findings []Problem   `json:"findings,omitzero"` // the same with a code each; nil of an older daemon
	Bytes    int64       `json:"bytes"`             // on the device, of all entries
	Roots    []Root      `json:"roots,omitempty"`
	Counts   Counts      `json:"counts"`
	Entries  []Entry     `json:"entries"`
}

// Root is a folder in which models are looked for.
type Root struct {
	Path string `json:"path"`
	// State is "complete", "searching", "partial", "hung" or "missing". Below a root that is
	// not complete there may be a twin of any model, so the daemon then refuses an engine
	// whose process doesn't say its model.
	State   string    `json:"state"`
	Reason  string    `json:"reason,omitempty"` // why it isn't complete
	Polled  string    `json:"polled,omitempty"` // why it is walked periodically; changes show after some seconds
	Folders int       `json:"folders"`
	Models  int       `json:"models"`
	Walked  time.Time `json:"walked,omitzero"` // when the last walk ended
	Seconds float64   `json:"walk_seconds"`    // duration of the last walk
}

// What a restart of an instance's service does to the weights that it holds.
const (
	RestartKeeps     = "keeps"
	RestartFrees     = "frees"     // the weights are held by processes that end with the daemon
	RestartUnmanaged = "unmanaged" // no service manager runs the daemon: its end frees all weights
)

// Version is the version of the asking program and of the daemon.
type Version struct {
	Client string `json:"client"`
	Daemon string `json:"daemon,omitempty"`
}

// Device is where an instance keeps weights.
type Device struct {
	Kind string `json:"kind"` // "host"
	UUID string `json:"uuid,omitempty"`
}

// Counts are counters since the daemon started.
type Counts struct {
	Hits    int64 `json:"hits"`
	Loads   int64 `json:"loads"`
	Failed  int64 `json:"failed"`
	Refused int64 `json:"refused"`
	// Misses are requests for weights that were not answered from memory, by
	// reason: all of [Reasons].
	Misses      map[string]int64 `json:"misses"`
	LoadedBytes int64            `json:"loaded_bytes"` // of all successful loads
	LoadSeconds float64          `json:"load_seconds"` // total duration of those loads
}

// Entry is one rank of a model.
type Entry struct {
	Key   string `json:"key"` // 64 hexadecimal digits
	Model string `json:"model"`
	// Sure says why it was certain, at the load, that an engine means this directory:
	// engine (the engine was started with it), name (the request names it), revision,
	// pin, content (all directories that fit are equal) or only (no other is known).
	Sure        string          `json:"sure,omitempty"`
	State       string          `json:"state"` // "loading", "ready", "leaving"
	Loader      string          `json:"loader,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Bytes       int64           `json:"bytes"`
	Tensors     int             `json:"tensors"`
	Pinned      bool            `json:"pinned"`
	Engines     []Engine        `json:"engines"`
	Waiting     int             `json:"waiting"`
	Progress    *Progress       `json:"progress,omitempty"` // while loading
	Loaded      time.Time       `json:"loaded,omitzero"`
	Used        time.Time       `json:"used"`
	LoadSeconds float64         `json:"load_seconds,omitempty"`
	Files       *Files          `json:"files,omitempty"` // nil while loading
	Fingerprint fingerprint.Key `json:"fingerprint"`
}

// Files are the files that an entry was loaded from.
type Files struct {
	Count   int      `json:"count"`
	Digests int      `json:"digests"` // number of files whose sha256 is known
	Damaged []string `json:"damaged"` // names of files whose name in a Hugging Face cache has another sha256
}

// Engine is a process that may map an entry.
type Engine struct {
	PID   int       `json:"pid"`
	Comm  string    `json:"comm"`
	Since time.Time `json:"since"`
}

// Progress is how far a load is, in bytes and seconds.
type Progress struct {
	Done    int64   `json:"done"`
	Total   int64   `json:"total"`
	Seconds float64 `json:"seconds"`
	Waiting string  `json:"waiting,omitempty"` // what for, such as memory that other programs hold
}

// ReadRequest reads the line of a request. The error is io.EOF if the input ends before it.
func ReadRequest(r *bufio.Reader) (Request, error) {
	var request Request
	if err := read(r, MaxRequest, &request); err != nil {
		return Request{}, err
	}
	return request, nil
}

// Read reads one line into v. The error is io.EOF if the input ends before the line.
func Read(r *bufio.Reader, v any) error { return read(r, MaxLine, v) }

func read(r *bufio.Reader, limit int, v any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return fmt.Errorf("read control line: over the limit of %d bytes", limit)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) == 0:
			return io.EOF
		case errors.Is(err, io.EOF):
			return fmt.Errorf("read control line: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return fmt.Errorf("read control line: %w", err)
		}
		break
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("read control line: %w", err)
	}
	return nil
}

// Write writes v as one line.
func Write(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write control line: %w", err)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write control line: %w", err)
	}
	return nil
}

// Path is the control socket that belongs to an engine's socket: the same name with the
// ending .control.
func Path(socket string) string {
	const ending = ".sock"
	if n := len(socket) - len(ending); n > 0 && socket[n:] == ending {
		socket = socket[:n]
	}
	return socket + ".control"
}
