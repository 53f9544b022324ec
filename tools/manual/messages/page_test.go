// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package messages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// If this failed, pages would have entries in other places, or mdoc that shows
// something else.
func TestFill(t *testing.T) {
	const page = `.Sh DIAGNOSTICS
Introduction.
.\" messages: a
what was there
.\" end of messages
.Ss Next
.\" messages: b
.\" end of messages
.Sh NEXT
`
	got, err := Fill(page, []Entry{
		{Section: "a", Head: "NAME is idle", Text: "One sentence. Another one, which is so long that it has to go on in the next line."},
		{Section: "a", Head: `identify = "strict" is set`, Text: "Set `assume = [\"rope\"]`, as wcache.toml(5) says (`a\\b`)."},
		{Section: "b", Head: "'x' is wrong", Text: ".hidden files of it. `a` or `b`: either."},
		{Section: "c", Head: "of another page", Text: "It is."},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `.Sh DIAGNOSTICS
Introduction.
.\" messages: a
.Bl -diag
.It identify = \(dqstrict\(dq is set
Set
.Ql "assume = [\(dqrope\(dq]" ,
as
.Xr wcache.toml 5
says
.Ql ( "a\eb" ) .
.It NAME is idle
One sentence.
Another one, which is so long that it has to go on in the next line.
.El
.\" end of messages
.Ss Next
.\" messages: b
.Bl -diag
.It \&'x' is wrong
\&.hidden files of it.
.Ql "a"
or
.Ql "b" :
either.
.El
.\" end of messages
.Sh NEXT
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, err := Fill(got, []Entry{{Section: "a", Head: "x y", Text: "Z."}, {Section: "b", Head: "y z", Text: "Z."}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, Sections(again)); diff != "" {
		t.Errorf("sections (-want +got):\n%s", diff)
	}
}

// If this failed, a page with a torn mark would lose text.
func TestFillTorn(t *testing.T) {
	entries := []Entry{{Section: "a", Head: "x y", Text: "Z."}}
	for page, want := range map[string]string{
		".\\\" messages: a\ntext\n":                                 `section "a" has no end`,
		".\\\" messages: a\n.\\\" messages: a\n":                    `section "a" has no end`,
		".\\\" end of messages\n":                                   "an end without a section",
		".\\\" messages: unknown\n.\\\" end of messages\nmore text": `section "unknown" has no messages`,
	} {
		if got, err := Fill(page, entries); err == nil || err.Error() != want {
			t.Errorf("Fill(%q) = %q, %v, want %s", page, got, err, want)
		}
	}
}
