// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package visible

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	got := make(map[string]string)
	want := map[string]string{
		"":                              "",
		"Llama-3.1 8B":                  "Llama-3.1 8B",
		"Größe 模型 ✓":                    "Größe 模型 ✓",
		"a\x1b[31mb":                    `a\x1b[31mb`,
		"a\x1b]0;title\a":               `a\x1b]0;title\a`,
		"two\nlines\r\t":                `two\nlines\r\t`,
		"\u009b2J":                      `\u009b2J`, // CSI in one character
		"evil\u202egpj.bin":             `evil\u202egpj.bin`,
		"\x7f":                          `\x7f`,
		"cut \xe6\xa8":                  `cut \xe6\xa8`,
		"\ufffd":                        "\ufffd",
		`open "a\x1b": no such file`:    `open "a\x1b": no such file`,
		"tag \U000E0041 and nbsp\u00a0": `tag \U000e0041 and nbsp\u00a0`,
	}
	for s := range want {
		got[s] = Text(s)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, want := Line("first: a\nsecond: \x1bb\n"), `first: a; second: \x1bb`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJSON(t *testing.T) {
	text := "{\n  \"a\u009b\": \"\x7f\u202e\U000E0041 模型 \\u001b\"\n}\n"
	want := "{\n  \"a\\u009b\": \"\\u007f\\u202e\\udb40\\udc41 模型 \\u001b\"\n}\n"
	if got := string(JSON([]byte(text))); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whatever comes, what is shown is printable, and JSON means what it meant.
func FuzzVisible(f *testing.F) {
	f.Add("a\x1b[31m\n\u009b\u202e\xff\U000E0041")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Text(s) {
			if !unicode.IsPrint(r) {
				t.Fatalf("Text(%q) has %q", s, r)
			}
		}
		if Printable(s) != (Text(s) == s) {
			t.Fatalf("Text(%q) = %q", s, Text(s))
		}
		if !utf8.ValidString(s) {
			s = strings.ToValidUTF8(s, "")
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		shown := JSON(b)
		var back string
		if err := json.Unmarshal(shown, &back); err != nil || back != s {
			t.Fatalf("JSON(%q) = %q: %q, %v", b, shown, back, err)
		}
		if !Printable(string(shown)) {
			t.Fatalf("JSON(%q) = %q", b, shown)
		}
	})
}
