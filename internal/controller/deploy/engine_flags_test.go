package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// engineFlag is a flag that an engine accepts.
type engineFlag struct {
	kind   string   // switch, value, list or json
	fields []string // of a json value
}

// readEngineFlags reads the flags by engine and name.
func readEngineFlags(t *testing.T) map[service.EngineKind]map[string]engineFlag {
	t.Helper()
	text, err := os.ReadFile("testdata/engine_flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[service.EngineKind]map[string]engineFlag{service.EngineVLLM: {}, service.EngineSGLang: {}}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] != "#" {
			known[service.EngineKind(words[0])][words[1]] = engineFlag{words[2], words[3:]}
		}
	}
	return known
}

// problem returns what an engine with these flags rejects in a command line; empty for nothing.
func problem(known map[string]engineFlag, args []string) string {
	for len(args) > 0 {
		name := args[0]
		flag, exists := known[name]
		if !exists {
			return "unknown argument " + name
		}
		values := 1
		for values < len(args) && !strings.HasPrefix(args[values], "--") {
			values++
		}
		values--
		switch {
		case flag.kind == "switch" && values > 0, flag.kind == "list" && values == 0, flag.kind != "switch" && flag.kind != "list" && values != 1:
			return fmt.Sprintf("%s is a %s, got %d values", name, flag.kind, values)
		case flag.kind == "json":
			var fields map[string]any
			if err := json.Unmarshal([]byte(args[1]), &fields); err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
			for field := range fields {
				if !slices.Contains(flag.fields, field) {
					return fmt.Sprintf("%s: unknown field %s", name, field)
				}
			}
		}
		args = args[1+values:]
	}
	return ""
}

// Engines accept every command line that a service.yaml can lead to.
func TestEnginesAcceptOurFlags(t *testing.T) {
	known := readEngineFlags(t)
	for kind, flags := range known {
		for choice := range 64 {
			has := func(bit int) bool { return choice&(1<<bit) != 0 }
			e := service.Engine{Kind: kind}
			if has(0) {
				e.LoRA = []service.Adapter{{Name: "sql=/image/sql"}, {Name: "law", Source: "org/law"}}
			}
			on := has(1)
			e.CacheEvents = &on
			if has(2) {
				e.DataParallel = 2
			}
			if has(3) {
				e.MaxNumSeqs = 256
			}
			if has(4) {
				e.Weights = "s3://models/m"
			}
			if has(5) {
				e.Args = map[service.EngineKind][]string{service.EngineVLLM: {"--max-model-len", "8192"}, service.EngineSGLang: {"--enable-dp-attention"}}[kind]
			}
			u, line := argsOf(e, 8)
			args := u.Args
			if kind == service.EngineSGLang {
				args = args[len(sglangServer):]
			}
			if u.LoRARankFlag != "" {
				args = append(slices.Clone(args), u.LoRARankFlag, "16")
			}
			if found := problem(flags, args); found != "" {
				t.Errorf("%s: %s in %s", kind, found, line)
			}
		}
	}
}

// The check above finds flags, values and fields that an engine does not know.
func TestUnknownEngineFlagsAreFound(t *testing.T) {
	known := readEngineFlags(t)[service.EngineVLLM]
	for line, want := range map[string]string{
		"--model m --max-num-seq 8":                     "unknown argument --max-num-seq",
		"--model m --enable-lora true":                  "--enable-lora is a switch, got 1 values",
		"--model --port 8000":                           "--model is a value, got 0 values",
		"--lora-modules --enable-lora":                  "--lora-modules is a list, got 0 values",
		`--kv-events-config {"enabled":true}`:           "--kv-events-config: unknown field enabled",
		`--kv-events-config {"publisher":"zmq"} --port`: "--port is a value, got 0 values",
		`--kv-events-config {"publisher":"zmq"}`:        "",
	} {
		if got := problem(known, strings.Fields(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The flags in the docs' examples of engine.args exist.
func TestEngineFlagsInDocsExist(t *testing.T) {
	known := readEngineFlags(t)
	for _, page := range []string{"engines.md", "service-yaml.md"} {
		text, err := os.ReadFile(filepath.Join("../../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range regexp.MustCompile(`args: \[[^\]]*\]`).FindAllString(string(text), -1) {
			for _, name := range regexp.MustCompile(`--[a-z-]+`).FindAllString(example, -1) {
				_, vllm := known[service.EngineVLLM][name]
				_, sglang := known[service.EngineSGLang][name]
				if !vllm && !sglang {
					t.Errorf("docs/%s: no engine accepts %s in %s", page, name, example)
				}
			}
		}
	}
}

// The script finds the flags in sources of the engines' form.
func TestEngineFlagsScript(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"vllm/engine/arg_utils.py":            "group.add_argument(\n    \"--max-num-seqs\", **kwargs)\n",
		"vllm/entrypoints/openai/cli_args.py": "class FrontendArgs:\n    lora_modules: list | None = None\n\n    def add_cli_args(parser):\n        x: int = 1\n",
		"python/sglang/srt/server_args.py":    "class ServerArgs:\n    tp_size: A[\n        int,\n    ] = 1\n    host: A[str, \"x\"] = \"a\"\n\n    def __post_init__(self):\n",
	} {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for engine, want := range map[string]string{"vllm": "--lora-modules\n--max-num-seqs\n", "sglang": "--host\n--tp-size\n"} {
		out, err := exec.CommandContext(t.Context(), "sh", "engine-flags.sh", engine, dir).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %q (%v), want %q", engine, out, err, want)
		}
	}
}
