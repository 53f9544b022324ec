// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package messages

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read gives the entries and faults of one source, behind "package p" in line 1.
func read(t *testing.T, source string) ([]Entry, []string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p", "p.go"), []byte("package p\n"+source), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, faults, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries, faults
}

// If this failed, the manual would lack messages, or have others than the program.
func TestRead(t *testing.T) {
	const mean = "// It means that. Do this.\n"
	entry := func(at, section, head string) []Entry {
		return []Entry{{At: at, Section: section, Head: head, Text: "It means that. Do this."}}
	}
	for name, c := range map[string]struct {
		source string
		want   []Entry
		faults []string
	}{
		"error": {
			source: "func f() error {\n//diag reaching NAME SOCKET\n// It means\n// that. Do this.\nreturn fmt.Errorf(\"cannot reach %s: no process listens on %q\", a, b)\n}",
			want:   entry("p/p.go:3", "reaching", "cannot reach NAME: no process listens on SOCKET"),
		},
		"code": {
			source: "type Code string\nconst (\n" + mean + "A Code = \"a-b\"\n)",
			want:   entry("p/p.go:5", "codes-p", "a-b"),
		},
		"code without a meaning": {
			source: "type Code string\nconst A Code = \"a-b\"",
			faults: []string{"p/p.go:3: no sentence that says what the code means: a-b"},
		},
		"behind another comment": {
			source: "func f() {\n// why\n//diag a\n" + mean + "log.Warn(\"entry is dropped\", \"err\", err)\n}",
			want:   entry("p/p.go:4", "a", "entry is dropped"),
		},
		"sum, and a percent sign": {
			source: "//diag a REASON\n" + mean + "\nvar s = reason + \"; 100%% of \" + \"it\"",
			want:   entry("p/p.go:2", "a", "REASON; 100% of it"),
		},
		"text in place of a word": {
			source: "//diag a NAME \": that is all\"\n" + mean + "\nvar s = Sprintf(\"%s is denied%s\", name, rest)",
			want:   entry("p/p.go:2", "a", "NAME is denied: that is all"),
		},
		"what people are told, of several in a line": {
			source: "func f() Result {\n//diag a UNIT\n" + mean + "return result(\"the check\", Fail, \"the advice\", \"%s is masked\", unit)\n}",
			want:   entry("p/p.go:3", "a", "UNIT is masked"),
		},
		"refusal over several lines": {
			source: "func f() error {\n//diag a\n" + mean + "return &Refusal{\nField: \"checkpoint\",\nReason: fmt.Sprintf(\"%v of them fit\", n),\n}\n}",
			faults: []string{"p/p.go:3: 0 words for the verbs of: %v of them fit"},
		},
		"two words that one format stands for": {
			source: "func f() string {\n//diag a \"one word\"\n" + mean + "//diag b TWO\n" + mean + "return fmt.Sprintf(\"it says %s\", x)\n}",
			want: append(entry("p/p.go:3", "a", "it says one word"),
				entry("p/p.go:5", "b", "it says TWO")...),
		},
		"typed error": {
			source: "//diag a FILE\n" + mean + "\n// Error is what it is.\nfunc (e *E) Error() string { return fmt.Sprintf(\"read %q again\", e.File) }",
			want:   entry("p/p.go:2", "a", "read FILE again"),
		},
		"typed errors without a comment": {
			source: "func (e *E) Error() string {\nif e.X {\nreturn \"it is not \" + e.Y\n}\nreturn fmt.Sprintf(\"read %q again\", e.File)\n}\n" +
				"func f() error {\nreturn &Uncertain{Reason: \"it is not known\"}\n}",
			faults: []string{
				"p/p.go:4: no //diag comment for: it is not %v",
				"p/p.go:6: no //diag comment for: read %q again",
				"p/p.go:9: no //diag comment for: it is not known",
			},
		},
		"as gofmt writes it above a declaration": {
			source: "// diag a\n" + mean + "var s = Sprintf(\"it is not known\")",
			faults: []string{"p/p.go:2: a space before diag, as gofmt writes it in a comment right above a declaration: leave a line free there"},
		},
		"nobody sees it": {
			source: "func f() error {\n//diag - it is checked before\nreturn &Unusable{Reason: \"does not exist\"}\n}",
		},
		"the same elsewhere": {
			source: "func f() {\n//diag a\n" + mean + "log.Error(\"entry is dropped\")\nlog.Error(\"entry is dropped\")\n}",
			want:   entry("p/p.go:3", "a", "entry is dropped"),
		},
		"no comment": {
			source: "func f() error {\nreturn refuse(field, \"there is no rank %d\", n)\n}",
			faults: []string{"p/p.go:3: no //diag comment for: there is no rank %d"},
		},
		"mistakes": {
			source: "func f() {\n//diag a Name\n" + mean + "log.Warn(\"it has %d names\", n)\n" +
				"//diag a NUMBER\nlog.Warn(\"it has %d numbers\", n)\n" +
				"//diag -\nlog.Warn(\"it is not seen\")\n" +
				"//diag a\n// Give `x`s.\nlog.Warn(\"it is not given\")\n" +
				"//diag a\n" + mean + "\n//diag a\n" + mean + "log.Warn(\"it is said twice\")\n}\n//diag a\n" + mean,
			want: entry("p/p.go:13", "a", "it is said twice"),
			faults: []string{
				`p/p.go:3: "Name" is no word in capitals`,
				"p/p.go:6: no sentences that say what it means: it has NUMBER numbers",
				"p/p.go:8: //diag - says nothing of why nobody sees: it is not seen",
				"p/p.go:10: code that is not between spaces: Give `x`s.",
				"p/p.go:16: the message of //diag has another one: it is said twice",
				"p/p.go:20: no message is behind //diag",
			},
		},
		"equal heads": {
			source: "func f() {\n//diag a NAME\n" + mean + "log.Warn(\"it is now %s\", a)\n//diag b NAME\n" + mean + "log.Warn(\"it is now %q\", a)\n}",
			want:   append(entry("p/p.go:3", "a", "it is now NAME"), entry("p/p.go:6", "b", "it is now NAME")...),
			faults: []string{"p/p.go:6: p/p.go:3 has the same head: it is now NAME"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			entries, faults := read(t, c.source)
			if diff := cmp.Diff(c.want, entries); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.faults, faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// If this failed, entries could vanish from the manual by a misspelt section.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"p.go": "package p\n\n//diag b\n// It means that.\n\nvar s = \"it is not known\"\n\n//diag a\n// Do this.\n\nvar t = \"it is not here\"\n",
		"x.1":  ".\\\" messages: a\n.\\\" end of messages\n",
		"y.1":  ".\\\" messages: b\n.\\\" end of messages\n",
		"z.1":  ".\\\" messages: c\n.\\\" end of messages\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Manual(dir, []string{"x.1", "y.1"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"x.1": ".\\\" messages: a\n.Bl -diag\n.It it is not here\nDo this.\n.El\n.\\\" end of messages\n",
		"y.1": ".\\\" messages: b\n.Bl -diag\n.It it is not known\nIt means that.\n.El\n.\\\" end of messages\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	_, err = Manual(dir, []string{"x.1", "z.1"})
	const faults = "z.1: section \"c\" has no messages\np.go:3: no page has a section \"b\""
	if err == nil || err.Error() != faults {
		t.Errorf("Manual = %v, want %s", err, faults)
	}
}
