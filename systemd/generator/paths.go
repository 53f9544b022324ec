// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package generator

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSocketPath is sun_path of struct sockaddr_un without the final zero byte.
const maxSocketPath = 107

// Path is a path where an unmodified engine looks for the cache of one GPU.
type Path struct {
	Path    string
	Draft   bool   // for the draft model of speculative decoding
	Release string // of vLLM, that looks there: "0.30", "0.31 and later"
	// Problem says why the unit can't listen there, and what to do. Empty if it can.
	Problem string
}

// EnginePaths lists where engines look for the cache of the GPU uuid, in the order of
// releases: below TempDir without options, and in the directory of wcache's own sockets
// with socket_dir set to it. A MIG slice has its own uuid, which /proc doesn't show; its
// paths are made in the same way.
func (m Machine) EnginePaths(uuid string) []Path {
	var list []Path
	for _, dir := range []string{m.defaultDir(), m.ownDir()} {
		if dir == "" {
			continue
		}
		for _, p := range names(uuid, m.FIPS) {
			p.Path = filepath.Join(dir, p.Path)
			if p.Problem = m.problem(p.Path); p.Problem == "" && dir == m.defaultDir() {
				p.Problem = m.Distrust
			}
			list = append(list, p)
		}
	}
	return list
}

// defaultDir is vLLM's socket_dir without options, empty if there is no place for it.
func (m Machine) defaultDir() string {
	if m.TempDir == "" {
		return ""
	}
	return filepath.Join(m.TempDir, fmt.Sprintf("vllm_weight_cache_%d", m.UID))
}

// ownDir is where wcache's socket units have their own sockets.
func (m Machine) ownDir() string { return filepath.Join(m.RuntimeDir, "vllm_weight_cache") }

// names are the paths within a directory: get_socket_path in vLLM's
// weight_cache/protocol.py, which hashes the uuid by md5, or by sha256 if Python's md5 is
// forbidden. The kernel's FIPS mode doesn't decide that alone, because an interpreter may
// have its own OpenSSL; in that mode both names are possible.
func names(uuid string, fips bool) []Path {
	name := func(id, role string) string { return "vllm_weight_cache_" + id + role + ".sock" }
	hash := md5.Sum([]byte(uuid))
	ids := []string{hex.EncodeToString(hash[:])}
	if fips {
		hash := sha256.Sum256([]byte(uuid))
		ids = append(ids, hex.EncodeToString(hash[:]))
	}
	list := []Path{{Path: name(uuid, ""), Release: "0.30"}}
	for _, id := range ids {
		list = append(list,
			Path{Path: name(id, ""), Release: "0.31 and later"},
			Path{Path: name(id, "_draft"), Release: "0.31 and later", Draft: true})
	}
	return list
}

// problem says why path can't be a socket's path, or can't be written in a unit file.
func (m Machine) problem(path string) string {
	if len(path) > maxSocketPath {
		return fmt.Sprintf("%d bytes, and a socket's path has at most %d: set the engine's socket_path to one of those in %s",
			len(path), maxSocketPath, m.ownDir())
	}
	if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
		return "the directory's name can't be written in a unit file: set another TMPDIR"
	}
	return ""
}
