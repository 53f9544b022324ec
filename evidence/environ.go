// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wcache/wcache/weights"
)

// environ is the environment that a process was started with. Changes that a program makes
// later can't be seen; vllm changes none of the variables that are read here.
type environ map[string]string

// environ reads the environment, nil if it is too long.
func (p process) environ() (environ, error) {
	text, err := procFile(p.pid, "environ", maxText)
	if errors.Is(err, errTooLong) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseEnviron(text), nil
}

// parseEnviron splits an environment into variables. If a name appears twice, the first
// counts, as in Python.
func parseEnviron(text []byte) environ {
	vars := make(environ)
	for entry := range strings.SplitSeq(string(text), "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := vars[name]; ok && name != "" && !twice {
			vars[name] = value
		}
	}
	return vars
}

// hub is the Hugging Face cache that the environment points to, or why that isn't certain.
// TRANSFORMERS_CACHE doesn't count: vLLM fetches weights with huggingface_hub, which
// ignores it.
func (e environ) hub() (dir, none string) {
	get := func(name string) string {
		v, set := e[name]
		switch {
		case name == "TRANSFORMERS_CACHE":
			return ""
		case set && v == "":
			none = fmt.Sprintf("%s is set and empty, which Python's libraries treat differently", name)
		case !set && name == "HOME":
			none = "HOME is not set, and only the engine's own system knows its home directory"
		case strings.HasPrefix(v, "~") && !strings.HasPrefix(v, "~/") && v != "~":
			none = fmt.Sprintf("%s is %q, below another user's home directory", name, v)
		}
		return v
	}
	if dir = weights.HubCache(get); none != "" {
		return "", none
	}
	return dir, ""
}

// offline is HF_HUB_OFFLINE of huggingface_hub's constants.py.
func (e environ) offline() bool {
	v := e["HF_HUB_OFFLINE"]
	if v == "" {
		v = e["TRANSFORMERS_OFFLINE"]
	}
	switch strings.ToUpper(v) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// modelScope is VLLM_USE_MODELSCOPE of vLLM's envs.py.
func (e environ) modelScope() bool {
	switch strings.ToLower(strings.TrimSpace(e["VLLM_USE_MODELSCOPE"])) {
	case "1", "true":
		return true
	}
	return false
}
