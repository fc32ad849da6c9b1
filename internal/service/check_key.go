package service

import (
	"reflect"
	"strings"
)

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

// checkArguments rejects arguments with which an engine does not start, or shows its API key. Those of other kinds than
// vLLM and SGLang are unknown.
func (c *checker) checkArguments() {
	for i, m := range c.spec.Models {
		if !m.Engine.ownedFlags() {
			continue
		}
		for j, arg := range m.Engine.Args {
			at := path("models").index(i).key("engine").key("args").index(j)
			flag, _, _ := strings.Cut(EngineFlag(arg), " ")
			if flag == flagAPIKey {
				c.reportAtPath(at, Error{
					Problem: "must not contain " + flagAPIKey, Suggestion: "set engine.api_key to env:NAME or file:PATH: balancers then send the key, and the process list does not show it",
				})
			} else if joinedFlag().MatchString(arg) {
				c.reportJoinedFlag(at, arg)
			}
		}
	}
}

// joinedFlag matches a flag that a space separates from its value. --flag=a b has no space in its name.
var joinedFlag = LazyPattern(`^--[A-Za-z0-9][A-Za-z0-9_.-]*\s+\S`)

// reportJoinedFlag reports an element of engine.args that is a flag and its value: the engine receives it as one argument.
func (c *checker) reportJoinedFlag(at path, arg string) {
	e := Error{Problem: "must be one argument, but is a flag and its value", Found: c.describePath(at), Suggestion: suggestElements}
	if e.Found != "" && !strings.ContainsAny(arg, `'"`) {
		e.Suggestion = "write separate elements: " + joinElements(strings.Fields(shorten(arg)), reflect.String)
	}
	c.reportAtPath(at, e)
}
