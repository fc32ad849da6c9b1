package gcp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// MetadataServer is where a machine asks about itself.
const MetadataServer = "http://metadata.google.internal"

// Interruption asks the metadata server of the machine that it runs on whether the
// cloud is taking the machine back, and says why; empty = it is not. From then the machine has about
// 30 seconds. base is MetadataServer. With wait the server holds its answer until that
// changes, or for some minutes; client must allow for that.
func Interruption(ctx context.Context, client *http.Client, base string, wait bool) (reason string, err error) {
	url := base + "/computeMetadata/v1/instance/preempted"
	if wait {
		url += "?wait_for_change=true&timeout_sec=120"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("asking %s about an interruption: %w", base, err)
	}
	r.Header.Set("Metadata-Flavor", "Google")
	answer, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("asking %s about an interruption: %w", base, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64))
	if err != nil {
		return "", fmt.Errorf("asking %s about an interruption: %w", base, err)
	}
	said := strings.TrimSpace(string(text))
	switch {
	case answer.StatusCode != http.StatusOK || answer.Header.Get("Metadata-Flavor") != "Google":
		return "", fmt.Errorf("asking %s about an interruption: it answered %s, not as a metadata server does", base, answer.Status)
	case said == "TRUE":
		return "the cloud takes the spot machine back", nil
	case said == "FALSE":
		return "", nil
	}
	return "", fmt.Errorf("asking %s about an interruption: it answered %q, not TRUE or FALSE", base, said)
}
