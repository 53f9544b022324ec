// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint_test

import (
	"fmt"
	"log"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights"
)

// Computes the key that an engine sends for a model directory, and explains how another engine's key differs.
func Example() {
	dir, err := weights.Open("../testdata/checkpoints/llama")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	plain, err := fingerprint.Compute(dir, fingerprint.Options{Release: "0.33.0"})
	if err != nil {
		log.Fatal(err)
	}
	half, err := fingerprint.Compute(dir, fingerprint.Options{Release: "0.33.0", DType: "float16", TPSize: 2, TPRank: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plain.Str("model_arch"), plain.Str("dtype"), plain.ID()[:12])
	fmt.Println(fingerprint.Compare(half, plain))
	for _, d := range fingerprint.Explain(half, dir) {
		fmt.Printf("%s: the engine has %v, the files give %v: %s\n", d.Field, d.Engine, d.Computed, d.Why)
	}
	// Output:
	// LlamaForCausalLM torch.bfloat16 28dd04106153
	// [tp_size tp_rank dtype]
	// dtype: the engine has torch.float16, the files give torch.bfloat16: the engine was started with --dtype float16, or its GPU has no bfloat16
}
