// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control

import "github.com/wcache/wcache/fingerprint"

// Verify asks to compare held weights with their files, and the files with their digests.
type Verify struct {
	// Targets are first digits of keys, absolute directories, or model ids; none: every
	// entry that is ready.
	Targets []string `json:"targets"`
}

// States of a Verified. Except for StateChanged and StateFailed, they are also states of its files.
const (
	StateEqual   = "equal"
	StateDiffers = "differs"
	StateChanged = "changed" // the files have changed since the load, so they can't be compared with the memory
	StateFailed  = "failed"  // it could not be done
	StateNew     = "new"     // of a file: it had no digest on record, and has one now
	StateDamaged = "damaged" // of a file: its name in a Hugging Face cache has another sha256
)

// Verified is what a verification has found of one entry.
type Verified struct {
	Key        string         `json:"key"` // 64 hexadecimal digits
	Model      string         `json:"model"`
	State      string         `json:"state"`
	Message    string         `json:"message,omitempty"` // why it isn't equal, for people
	Hint       string         `json:"hint,omitempty"`    // what to do
	Bytes      int64          `json:"bytes"`             // of memory to compare
	Seconds    float64        `json:"seconds"`
	Difference *Difference    `json:"difference,omitempty"` // of the memory
	Dropped    bool           `json:"dropped"`              // it is not served any more; the next request loads it again
	Files      []VerifiedFile `json:"files"`                // the files that were read to their end

	Fingerprint fingerprint.Key `json:"fingerprint"` // the key's fields
}

// Difference says where memory differs from the files.
type Difference struct {
	Tensor  string `json:"tensor"`       // the first different one, by its place in memory
	Offset  int64  `json:"offset"`       // bytes from the tensor's start to the first difference
	Memory  byte   `json:"memory_value"` // that byte in memory
	File    byte   `json:"file_value"`   // and in the files
	Bytes   int64  `json:"bytes"`        // number of different bytes, in all
	Tensors int    `json:"tensors"`      // number of tensors with different bytes
}

// VerifiedFile is a file and its digests, each of 64 hexadecimal digits.
type VerifiedFile struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	SHA256   string `json:"sha256"`
	Recorded string `json:"recorded_sha256,omitempty"` // the sha256 on record before
	Hub      string `json:"hub_sha256,omitempty"`      // the sha256 in its name in a Hugging Face cache
}
