package templates

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed service-*.yaml
var files embed.FS

// starterName is what the service is called in the embedded texts.
const starterName = "chat"

// Clouds are the clouds that have a starter, the one that costs nothing first.
func Clouds() []string { return []string{"local", "static", "aws", "gcp"} }

// Starter is a commented service.yaml for a cloud. name is put in as the name
// of the service; empty = chat. A cloud without a starter is an error. The name
// is not checked here: service.Parse does that.
func Starter(cloud, name string) ([]byte, error) {
	if !slices.Contains(Clouds(), cloud) {
		return nil, fmt.Errorf("no starter for the cloud %q: want %s", cloud, strings.Join(Clouds(), ", "))
	}
	text, err := files.ReadFile("service-" + cloud + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the starter for %s: %w", cloud, err)
	}
	if name == "" {
		return text, nil
	}
	return bytes.Replace(text, []byte("\nname: "+starterName+"\n"), []byte("\nname: "+name+"\n"), 1), nil
}
