// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// Shows which files of a model directory vLLM loads, what they contain, and that a change is noticed.
func Example() {
	tmp, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	path := filepath.Join(tmp, "llama")
	if err := os.CopyFS(path, os.DirFS("../testdata/checkpoints/llama")); err != nil {
		log.Fatal(err)
	}

	dir, err := weights.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	fmt.Println(len(dir.Load), "files, the first", dir.Load[0].Base)
	file, tensor, _ := dir.Find("model.norm.weight")
	fmt.Println(tensor.DType, tensor.Shape, "in", file.Base)

	if err := os.WriteFile(filepath.Join(path, "model-00001-of-00004.safetensors"), nil, 0o600); err != nil {
		log.Fatal(err)
	}
	var changed *stamp.Changed
	fmt.Println(errors.As(dir.Stale(), &changed))
	// Output:
	// 4 files, the first model-00001-of-00004.safetensors
	// BF16 [64] in model-00003-of-00004.safetensors
	// true
}
