// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzCommand reads command lines, and a file of options that one may name. A certain
// result has to appear in one of the two.
func FuzzCommand(f *testing.F) {
	files, err := filepath.Glob("testdata/commands/*.y*ml")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	var texts [][]byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		texts = append(texts, text)
	}
	recordings, err := os.Open("testdata/commands/recorded.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	defer recordings.Close()
	n := 0
	for scanner := bufio.NewScanner(recordings); scanner.Scan(); n++ {
		var r recorded
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			f.Fatal(err)
		}
		if n%8 != 0 && !slices.Contains(r.Argv, "--config") {
			continue
		}
		argv := append([]string{"python3", "-u", "/bin/vllm", r.Program}, r.Argv...)
		f.Add([]byte(strings.Join(argv, "\x00")+"\x00"), texts[n%len(texts)])
	}
	f.Add([]byte("VLLM::EngineCore\x00\x00\x00"), texts[0])
	f.Add([]byte("python\x00-Xa\x00-mvllm.entrypoints.openai.api_server\x00--model\x00m\x00"), texts[0])
	f.Add([]byte("vllm\x00serve\x00--config\x00c.yaml\x00-sc.model\x00x\x00"), texts[0])
	f.Fuzz(func(t *testing.T, cmdline, config []byte) {
		argv := splitCommand(cmdline)
		if joined := strings.Join(argv, "\x00"); !strings.HasPrefix(string(cmdline), joined) {
			t.Fatalf("split into %q", argv)
		}
		describe(argv)
		p, kind := classify(argv)
		if kind != isVLLM || p.none != "" {
			return
		}
		asked := false
		s, none := p.read(func(string) ([]byte, error) { asked = true; return config, nil })
		if (none == "") == (s.model == "") {
			t.Fatalf("got %+v and %q", s, none)
		}
		if none != "" {
			return
		}
		for _, text := range []string{s.model, s.revision, s.downloadDir} {
			in := func(arg string) bool { return strings.Contains(arg, text) }
			if !asked && !slices.ContainsFunc(argv, in) {
				t.Fatalf("%q is from nowhere", text)
			}
		}
		if d := s.speculative; (d.none == "") != (d.model != "" || d.shared) {
			t.Fatalf("got draft %+v", d)
		}
		if again, _ := p.read(func(string) ([]byte, error) { return config, nil }); again != s {
			t.Fatalf("got %+v, and again %+v", s, again)
		}
	})
}

func FuzzEnviron(f *testing.F) {
	f.Add([]byte("HOME=/h\x00HF_HOME=~/x\x00A=b=c\x00=x\x00\x00HOME=/other\x00"))
	f.Add([]byte("HF_HUB_CACHE=${A}$B/$\x00A=\x00B=$B\x00XDG_CACHE_HOME=~\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		vars := parseEnviron(text)
		if dir, none := vars.hub(); (dir == "") == (none == "") {
			t.Fatalf("%q and %q", dir, none)
		}
		vars.offline()
		vars.modelScope()
	})
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("12 (vllm) S 1 2 3 0 -1 4194304 2060 0 0 0 3 1 0 0 20 0 1 0 170603 17076224"))
	f.Add([]byte("12 (a) b) S"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parseStat(text); err == nil && p.state == 0 {
			t.Fatalf("got %+v", p)
		}
	})
}
