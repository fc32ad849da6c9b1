package service

import (
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// foreignFiles are the files of other tools that are passed to skyserve by mistake: the keys that only they
// have at the top, and where their contents belong.
var foreignFiles = []struct {
	keys       []string // any of them, while none of ownKeys is present
	name, next string
}{
	{
		[]string{"service", "resources", "setup", "run", "file_mounts", "num_nodes"},
		"a task file of SkyPilot (SkyServe)",
		"run 'skyserve init --from FILE > new.yaml' to convert a service of SkyServe, or 'skyserve init' for a starter file",
	},
	{
		[]string{"apiVersion", "metadata", "spec"},
		"a Kubernetes manifest",
		"run 'skyserve init' for a starter file: replicas becomes regions[].replicas, the container's image and args become models[].engine",
	},
	{
		[]string{"services", "volumes", "networks"},
		"a Compose file of Docker",
		"run 'skyserve init' for a starter file: image and command become models[].engine",
	},
}

// ownKeys are keys of which every file of skyserve has one at the top.
var ownKeys = []string{"models", "regions", "balancers", "replicas"}

// foreignFile returns an error if the document is a file of another tool: a list of its unknown keys would
// not say so. Otherwise nil.
func (d *document) foreignFile() *Error {
	pairs, ok := pairsOf(d.root)
	if !ok {
		return nil
	}
	has := func(keys []string) *ast.MappingValueNode {
		i := slices.IndexFunc(pairs, func(kv *ast.MappingValueNode) bool { return slices.Contains(keys, keyText(kv.Key)) })
		if i < 0 {
			return nil
		}
		return pairs[i]
	}
	if has(ownKeys) != nil {
		return nil
	}
	for _, f := range foreignFiles {
		if kv := has(f.keys); kv != nil {
			line, col := position(kv.Key)
			return &Error{
				File: d.file, Line: line, Column: col, Path: keyText(kv.Key),
				Problem: "this is " + f.name + ", not a service file of skyserve", Suggestion: f.next, Source: d.excerpt(line, col),
			}
		}
	}
	return nil
}
