// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// sniffed is how many bytes of a file are read to tell its format. A pointer of Git
// LFS has less than 1024, its first two lines less than this.
const sniffed = 512

// magics lists how files of other formats begin, and what to do with them.
var magics = []struct {
	begins string
	is     string
}{
	{"\x1f\x8b", "is compressed with gzip; unpack it"},
	{"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it"},
	{"\xfd7zXZ\x00", "is compressed with xz; unpack it"},
	{"BZh", "is compressed with bzip2; unpack it"},
	{"PK\x03\x04", "is a zip archive, as torch.save writes; it has to be converted"},
	{"GGUF", "is a GGUF file; it has to be converted"},
	{"\x80\x02", pickled}, {"\x80\x03", pickled}, {"\x80\x04", pickled}, {"\x80\x05", pickled},
	{"\x89HDF\r\n", "is an HDF5 file, as Keras writes; it has to be converted"},
}

// reserved describes a file for which a download has reserved room and written nothing.
const reserved = "begins with zeros, where a download has written nothing yet"

const pickled = "is a pickle, as torch.save writes; it has to be converted"

// pages matches the start of a web page that a server sent in place of a file.
var pages = regexp.MustCompile(`^(?i:<!doctype html|<html|<head|<body|<\?xml)`)

// pointer matches the file that Git LFS leaves in place of one that it has not fetched:
// docs/spec.md of its repository.
var pointer = regexp.MustCompile(`^version https://git-lfs\.github\.com/spec/v1\n(?s:.*)\nsize ([0-9]{1,18})\n`)

// foreign looks at a file's first bytes. If they show a format other than the name
// promises, it says which and what to do; else it returns "".
func foreign(begin []byte) string {
	if m := pointer.FindSubmatch(begin); m != nil {
		//diag files NUMBER
		// The repository was cloned without its large files. Run `git lfs pull` in the directory.
		return fmt.Sprintf("is a pointer of Git LFS to a file of %s bytes, which has not been fetched; run in its folder: git lfs pull", m[1])
	}
	for _, m := range magics {
		if bytes.HasPrefix(begin, []byte(m.begins)) {
			return m.is
		}
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(begin, []byte("\ufeff")), " \t\r\n")
	switch {
	case pages.Match(text):
		//diag files
		// The download has stored an HTML page, such as an error or a login page, in place of the
		// file. Fetch the file again, with the token that the server asks for.
		return "is a page of a web server, such as an error or a login; fetch it again"
	case len(begin) > 0 && len(bytes.Trim(begin, "\x00")) == 0:
		return reserved
	case len(text) > 0 && isText(begin):
		const shown = 40
		line, _, _ := bytes.Cut(text, []byte("\n"))
		//diag files TEXT
		// The download has stored a message of the server, such as `Invalid username or password`,
		// in place of the file. Fetch the file again, with the token that the server asks for.
		return fmt.Sprintf("is a text that begins with %q; fetch it again", line[:min(len(line), shown)])
	}
	return ""
}

// isText reports whether bytes are readable text. Its last character may be cut off.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			return len(b) < utf8.UTFMax && !utf8.FullRune(b)
		}
		if !unicode.IsPrint(r) && !unicode.IsSpace(r) {
			return false
		}
		b = b[size:]
	}
	return true
}

// beginning gives the first bytes of a file.
func beginning(r io.ReaderAt) []byte {
	b := make([]byte, sniffed)
	n, _ := r.ReadAt(b, 0) // reading the file has failed before
	return b[:n]
}

// foreignFile is [notJSON] for a file.
func foreignFile(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe reads as empty, without waiting
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // nothing was written
	return notJSON(beginning(f))
}

// notJSON is [foreign] for a file that should be JSON, so that text alone isn't wrong.
func notJSON(begin []byte) string {
	if text := bytes.TrimLeft(begin, " \t\r\n"); len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		return ""
	}
	what := foreign(begin)
	if what == reserved {
		what += "; fetch it again"
	}
	return what
}
