package skypilot

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"skyserve/internal/service"
)

// gpuCountVariable is SkyPilot's variable with the number of GPUs of a machine.
const gpuCountVariable = "SKYPILOT_NUM_GPUS_PER_NODE"

// ownFlags are flags that skyserve sets itself: their values are dropped. true = the flag has no value.
var ownFlags = map[string]bool{
	"--host": false, "--port": false, "--model": false, "--model-path": false,
	"--tensor-parallel-size": false, "-tp": false, "--tp": false, "--tp-size": false, "--api-key": false, "--enable-metrics": true,
}

// engine converts the engine's command in `run`.
func (c *converter) engine(m *model) {
	m.Name, m.Engine.Kind = placeholderModel, string(service.EngineVLLM)
	words, kind := c.command()
	if words == nil {
		c.note("models[0].name: run has no command of vLLM or SGLang; replace %s by the model, and check engine", placeholderModel)
		return
	}
	m.Engine.Kind = string(kind)
	args := words
	var loose []looseWord
	for i, open := 0, false; i < len(args); i++ {
		_, value, joined := strings.Cut(args[i], "=")
		flag, followsFlag := service.EngineFlag(args[i]), open
		open = false
		next := func() string {
			if !joined && i+1 < len(args) {
				i++
				value = args[i]
			}
			return value
		}
		alone, own := ownFlags[flag]
		switch {
		case flag == "--model" || flag == "--model-path":
			m.Name = next()
		case flag == "--served-model-name":
			m.Aliases = append(m.Aliases, next())
		case flag == "--max-num-seqs" || flag == "--max-running-requests":
			m.Engine.MaxNumSeqs, _ = strconv.Atoi(next())
		case flag == "--data-parallel-size" || flag == "--dp-size" || flag == "--dp":
			m.Engine.DataParallel, _ = strconv.Atoi(next())
		case flag == "--api-key":
			next()
			c.note("--api-key was not copied: engines are reached by balancers only; for a key of the engine set engine.api_key")
		case own && !alone:
			next()
		case own:
		default:
			if open = strings.HasPrefix(flag, "-") && !joined; !strings.HasPrefix(flag, "-") {
				loose = append(loose, looseWord{len(m.Engine.Args), followsFlag})
			}
			m.Engine.Args = append(m.Engine.Args, args[i])
		}
	}
	if m.Name == placeholderModel {
		c.positionalModel(m, loose)
	}
	if m.Name == "" || m.Name == placeholderModel {
		m.Name = placeholderModel
		c.note("models[0].name: the command of run does not name the model; replace %s", placeholderModel)
	}
	m.Aliases = slices.DeleteFunc(m.Aliases, func(a string) bool { return a == m.Name || a == "" })
}

// looseWord is an argument at an index of engine.args that is no flag. After a flag that skyserve does not know, it may
// be the value of that flag.
type looseWord struct {
	at          int
	followsFlag bool
}

// positionalModel moves the model of `vllm serve MODEL` from the engine's arguments to its name: the first word that
// follows no flag, otherwise the last that looks like a repository, otherwise the last.
func (c *converter) positionalModel(m *model, loose []looseWord) {
	if len(loose) == 0 {
		return
	}
	args := m.Engine.Args
	i := slices.IndexFunc(loose, func(w looseWord) bool { return !w.followsFlag })
	if i < 0 {
		i = len(loose) - 1
		for j, w := range loose {
			if strings.Contains(args[w.at], "/") {
				i = j
			}
		}
		c.note("models[0].name: check that %s is the model, not the value of %s", args[loose[i].at], args[loose[i].at-1])
	}
	at := loose[i].at
	m.Name = args[at]
	m.Engine.Args = slices.Delete(args, at, at+1)
}

// command returns the arguments of the first command in `run` that starts vLLM or SGLang, and the kind of
// the engine; nil without one.
func (c *converter) command() (args []string, kind service.EngineKind) {
	script, err := syntax.NewParser().Parse(strings.NewReader(c.task.Run), "run")
	if err != nil {
		c.note("run: not a shell script that can be read (%s)", firstLine(err))
		return nil, ""
	}
	config := &expand.Config{Env: expand.FuncEnviron(c.variable)}
	syntax.Walk(script, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok || args != nil {
			return args == nil
		}
		// A command with substitutions, such as $(nproc), cannot be expanded without running it.
		words, err := expand.Fields(config, call.Args...)
		if err == nil {
			args, kind = engineArgs(words)
		}
		return args == nil
	})
	return args, kind
}

// engineArgs returns the arguments of an engine in the words of a command; nil if it starts none. A container
// image of vLLM precedes its arguments.
func engineArgs(words []string) ([]string, service.EngineKind) {
	for i, w := range words {
		switch {
		case w == "serve" && i > 0 && (words[i-1] == "vllm" || strings.HasSuffix(words[i-1], "/vllm")):
			return append([]string{}, words[i+1:]...), service.EngineVLLM
		case strings.HasPrefix(w, "vllm.entrypoints."), strings.HasPrefix(w, "vllm/vllm-openai"):
			return append([]string{}, words[i+1:]...), service.EngineVLLM
		case w == "sglang.launch_server":
			return append([]string{}, words[i+1:]...), service.EngineSGLang
		}
	}
	return nil, ""
}

// variable returns the value of a variable in `run`: one of envs that is no secret, or the number of GPUs.
func (c *converter) variable(name string) string {
	if name == gpuCountVariable {
		return strconv.Itoa(c.gpuCount)
	}
	if mayBeSecret(name) {
		return "REDACTED"
	}
	return scalar(c.task.Envs[name])
}
