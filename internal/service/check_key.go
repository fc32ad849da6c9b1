package service

import "strings"

// flagAPIKey is the argument with which vLLM and SGLang receive their API key.
const flagAPIKey = "--api-key"

// EngineFlag returns the flag in an argument of an engine, without a value after "=". vLLM reads _ in long flags as -.
func EngineFlag(arg string) string {
	flag, _, _ := strings.Cut(arg, "=")
	if strings.HasPrefix(flag, "--") {
		flag = strings.ReplaceAll(flag, "_", "-")
	}
	return flag
}

// checkKeyArguments rejects API keys among the arguments of an engine: the process list shows them,
// and balancers send only the key of engine.api_key.
func (c *checker) checkKeyArguments() {
	for i, m := range c.spec.Models {
		if k := m.Engine.Kind; k != EngineVLLM && k != EngineSGLang {
			continue
		}
		for j, arg := range m.Engine.Args {
			if EngineFlag(arg) == flagAPIKey {
				c.reportAtPath(path("models").index(i).key("engine").key("args").index(j), Error{
					Problem: "must not contain " + flagAPIKey, Suggestion: "set engine.api_key to env:NAME or file:PATH: balancers then send the key, and the process list does not show it",
				})
			}
		}
	}
}
