// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control

// Problem is a current problem.
type Problem struct {
	Code ProblemCode `json:"code"`
	Text string      `json:"text"` // a sentence for people, whose words may change
}

// ProblemCode names a problem. Codes are stable: a program may act on them, and a later
// version neither removes one nor gives it another meaning.
type ProblemCode string

// The codes, by their names.
const (
	// The configuration can't be used: nothing is loaded until it is mended, and what is held is served.
	ConfigBroken ProblemCode = "config-broken"
	// The device of the instance can't be used, and nothing is loaded.
	DeviceMissing ProblemCode = "device-missing"
	// An entry would not outlive the daemon, because the service manager has not taken its descriptors.
	EntryNotKept ProblemCode = "entry-not-kept"
	// A file of a model is not what its name in a Hugging Face cache says.
	FileDamaged ProblemCode = "file-damaged"
	// The driver could not be asked how the GPU is; what is held stays.
	GPUHealthUnknown ProblemCode = "gpu-health-unknown"
	// The GPU is lost, needs a reset or is missing, and what it held is gone.
	GPUUnusable ProblemCode = "gpu-unusable"
	// Lines of the log wait or are missing: its reader does not read, or they can't be written.
	LogNotRead ProblemCode = "log-not-read"
	// The manifest can't be written; no weights depend on it.
	ManifestNotWritten ProblemCode = "manifest-not-written"
	// A folder of models could not be searched whole: engines whose process doesn't say its model are refused.
	RootNotSearched ProblemCode = "root-not-searched"
	// A socket's file, its lock or its folder is not as the daemon needs it.
	SocketWrong ProblemCode = "socket-wrong"
)

// ProblemCodes are all codes, in their order.
func ProblemCodes() []ProblemCode {
	return []ProblemCode{
		ConfigBroken, DeviceMissing, EntryNotKept, FileDamaged, GPUHealthUnknown, GPUUnusable,
		LogNotRead, ManifestNotWritten, RootNotSearched, SocketWrong,
	}
}
