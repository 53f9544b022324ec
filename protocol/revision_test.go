// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol/pickle"
)

// Requests of vLLM 0.33 for a model id that it has asked the hub about, pickled by
// Python with huggingface_hub 2.4.
func TestResolvedRevision(t *testing.T) {
	const commit = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
	for file, want := range map[string]fingerprint.Revision{
		"revision.bin":       {Commit: commit, Repo: "o/n"},
		"revision-named.bin": {Name: "v1.0", Commit: commit, Repo: "o/n"},
	} {
		b, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := DecodeRequest(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.Key.Revision()); diff != "" || r.Key.Str("checkpoint") != "o/n" {
			t.Errorf("%s: checkpoint %s, revision (-want +got):\n%s", file, r.Key.Str("checkpoint"), diff)
		}
		again, err := EncodeRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeRequest(again)
		if err != nil || !s.Key.Equal(r.Key) {
			t.Errorf("%s: written and read again it is %v, %v", file, s, err)
		}
	}
}

func TestResolvedRevisionRefused(t *testing.T) {
	call := func(f pickle.Global, args ...any) *pickle.Call { return &pickle.Call{Func: f, Args: args} }
	for want, v := range map[string]*pickle.Call{
		`decode request: field "revision" of WeightCacheKey: huggingface_hub._revision.ResolvedRevision of 0 values`: call(resolvedRevision),
		`decode request: field "revision" of WeightCacheKey: huggingface_hub._revision.ResolvedRevision of 5 values`: call(resolvedRevision, "a", nil, nil, nil, nil),
		`decode request: field "revision" of WeightCacheKey: huggingface_hub._revision.ResolvedRevision of a int64`:  call(resolvedRevision, int64(1)),
		`decode request: field "revision" of WeightCacheKey: call of ` + DefaultModule + `.WeightCacheKey, which keys don't have`: call(
			pickle.Global{Module: DefaultModule, Name: keyClass}, "a"),
		`decode request: decode pickle: global "system" of module "os" is not allowed`: call(pickle.Global{Module: "os", Name: "system"}, "true"),
	} {
		b, err := pickle.Encode(&pickle.Dict{Items: []pickle.Item{
			{Key: "cmd", Value: GetState},
			{Key: "cache_key", Value: &pickle.Object{
				Class: pickle.Global{Module: DefaultModule, Name: keyClass}, Args: pickle.Tuple{},
				State: &pickle.Dict{Items: []pickle.Item{{Key: "revision", Value: v}}},
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeRequest(b); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
