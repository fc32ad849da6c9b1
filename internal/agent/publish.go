package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"skyserve/internal/identity"
)

// Publisher publishes the fingerprint of a machine's key where an operator can read it. Only the
// machine and the owner of its AWS account or Google Cloud project can write there.
type Publisher interface {
	Publish(ctx context.Context, name identity.Name, fingerprint string) error
}

// ConsoleLine returns the line of a console that publishes a fingerprint.
func ConsoleLine(name identity.Name, fingerprint string) string {
	return fmt.Sprintf("skyserve: key of %s: %s\n", name, fingerprint)
}

var consoleLinePattern = regexp.MustCompile(`skyserve: key of (skyserve://\S+): ([a-z2-7]{52})\r?\n`)

// FindConsoleLine finds the fingerprint of a machine in the text of its console, the last one if
// there are several; found is false if there is none yet.
func FindConsoleLine(console string, name identity.Name) (fingerprint string, found bool) {
	for _, m := range consoleLinePattern.FindAllStringSubmatch(console, -1) {
		if m[1] == name.String() {
			fingerprint, found = m[2], true
		}
	}
	return fingerprint, found
}

// Console publishes on the machine's console, which the cloud stores: AWS returns it from
// GetConsoleOutput, Google from getSerialPortOutput. Only root can write to it.
type Console struct{ Path string }

// Publish writes the line.
func (c Console) Publish(_ context.Context, name identity.Name, fingerprint string) error {
	f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// The boot messages before it may end in the middle of a line.
	_, err = f.WriteString("\n" + ConsoleLine(name, fingerprint))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// GuestAttributes publishes as a guest attribute of a machine at Google, which is written from inside
// the machine only. The instance's metadata must have enable-guest-attributes.
type GuestAttributes struct {
	// Base is the metadata server's URL; empty = Google's.
	Base string
}

// GuestAttributePath is the namespace and key of the fingerprint.
const GuestAttributePath = "skyserve/fingerprint"

// Publish writes the attribute.
func (g GuestAttributes) Publish(ctx context.Context, _ identity.Name, fingerprint string) error {
	_, err := requestMetadata(ctx, http.MethodPut, baseURLOr(g.Base, gcpMetadata)+"/computeMetadata/v1/instance/guest-attributes/"+GuestAttributePath, gcpHeader, fingerprint)
	return err
}

// Metadata servers of the clouds. They are addresses, since DNS names could be spoofed.
const (
	gcpMetadata = "http://169.254.169.254"
	awsMetadata = "http://169.254.169.254"
)

var gcpHeader = http.Header{"Metadata-Flavor": {"Google"}}

// baseURLOr returns base without a trailing slash, or the default if base is empty.
func baseURLOr(base, fallback string) string {
	if base == "" {
		return fallback
	}
	return strings.TrimRight(base, "/")
}

// metadataClient calls the metadata server from inside a machine, never through an HTTP proxy.
var metadataClient = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// httpStatusError is an error response of a metadata server or of an object store.
type httpStatusError struct {
	path   string
	status int
}

func (e *httpStatusError) Error() string {
	return fmt.Sprintf("%s returned HTTP status %d", e.path, e.status)
}

// requestMetadata performs a request to a metadata server.
func requestMetadata(ctx context.Context, method, url string, header http.Header, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	req.Header = header.Clone()
	resp, err := metadataClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &httpStatusError{req.URL.Path, resp.StatusCode}
	}
	return string(text), err
}
