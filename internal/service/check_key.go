package service

import "strings"

// flagAPIKey is the argument with which vLLM and SGLang receive their API key.
const flagAPIKey = "--api-key"

// checkKeyArguments rejects API keys among the arguments of an engine: the process list shows them,
// and balancers send only the key of engine.api_key.
func (c *checker) checkKeyArguments() {
	for i, m := range c.spec.Models {
		if k := m.Engine.Kind; k != EngineVLLM && k != EngineSGLang {
			continue
		}
		for j, arg := range m.Engine.Args {
			if name, _, _ := strings.Cut(arg, "="); name == flagAPIKey {
				c.reportAtPath(path("models").index(i).key("engine").key("args").index(j), Error{
					Problem: "must not contain " + flagAPIKey, Suggestion: "set engine.api_key to env:NAME or file:PATH: balancers then send the key, and the process list does not show it",
				})
			}
		}
	}
}
