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

// starterName is the name of the service in the embedded starters.
const starterName = "chat"

// Clouds returns the clouds that have a starter. The first one is the default and costs nothing.
func Clouds() []string { return []string{"local", "static", "aws", "gcp"} }

// Starter returns a commented service.yaml for a cloud. name is the name of the service; empty =
// chat. Starter does not validate the name; service.Parse does. It returns an error for a cloud
// without a starter.
func Starter(cloud, name string) ([]byte, error) {
	if !slices.Contains(Clouds(), cloud) {
		return nil, fmt.Errorf("unknown cloud %q: must be one of %s", cloud, strings.Join(Clouds(), ", "))
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
