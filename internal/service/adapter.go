package service

import "strings"

// Adapter is a LoRA adapter of an engine. In service.yaml, its name alone is enough.
type Adapter struct {
	// Name is the name that clients use. NAME=PATH loads the adapter from a path in the container.
	Name string `yaml:"name" json:"name"`
	// Source is where rented machines download the adapter from: ORG/NAME on the Hugging Face hub, or
	// s3://bucket/prefix or gs://bucket/prefix; empty = the engine finds it by its name or path.
	Source string `yaml:"source,omitempty" json:"source,omitempty"`
}

// InBucket reports whether the adapter is downloaded from a bucket.
func (a Adapter) InBucket() bool { return strings.Contains(a.Source, "://") }

// Adapters returns the adapter names in LoRA, without the paths.
func (e *Engine) Adapters() []string {
	var names []string
	for _, a := range e.LoRA {
		name, _, _ := strings.Cut(a.Name, "=")
		names = append(names, name)
	}
	return names
}

// BucketFolders returns the folders of buckets from which rented machines download the engine's weights
// and adapters, each once.
func (e *Engine) BucketFolders() []string {
	var folders []string
	if e.Weights != "" {
		folders = append(folders, e.Weights)
	}
	for _, a := range e.LoRA {
		if a.InBucket() {
			folders = append(folders, a.Source)
		}
	}
	return folders
}
