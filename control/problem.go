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
	// The configuration can't be used; the one before stays, or the defaults.
	ConfigBroken ProblemCode = "config-broken"
	// The device of the instance can't be used, and nothing is loaded.
	DeviceMissing ProblemCode = "device-missing"
	// An entry would not outlive the daemon, because the service manager has not taken its descriptors.
	EntryNotKept ProblemCode = "entry-not-kept"
	// A file of a model is not what its name in a Hugging Face cache says.
	FileDamaged ProblemCode = "file-damaged"
	// The GPU is lost, needs a reset, is missing or its state can't be read.
	GPUUnusable ProblemCode = "gpu-unusable"
	// The reader of the log does not read, and lines are missing.
	LogNotRead ProblemCode = "log-not-read"
	// The manifest can't be written; nothing is lost while the machine runs.
	ManifestNotWritten ProblemCode = "manifest-not-written"
	// A folder of models could not be searched completely.
	RootNotSearched ProblemCode = "root-not-searched"
	// A socket's file, its lock or its folder is not as the daemon needs it.
	SocketWrong ProblemCode = "socket-wrong"
)
