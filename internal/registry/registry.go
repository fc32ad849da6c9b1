// Package registry reads the digests of container images from their registries.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Errors of Digest. All others mean that the registry gave no usable answer.
var (
	// ErrNotFound means that the registry does not have the image.
	ErrNotFound = errors.New("the registry does not have it")
	// ErrDenied means that the registry requires credentials. Registries also deny repositories that do not exist.
	ErrDenied = errors.New("the registry requires credentials, or the repository does not exist")
	// ErrLimited means that the registry accepts no more requests now.
	ErrLimited = errors.New("the registry limits requests")
	// ErrInvalid means that the image's name is invalid.
	ErrInvalid = errors.New("invalid name of an image")
)

// timeout limits one request, with its retries.
const timeout = 15 * time.Second

// Digest returns the digest that an image has at its registry now: sha256: and 64 hexadecimal digits. That of an
// image for several platforms is the digest of its index. It sends one HEAD request, which registries do not count
// as a pull, with the credentials of Docker's configuration on this computer.
func Digest(ctx context.Context, image string) (string, error) {
	ref, err := reference(image)
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", ErrInvalid, image, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%s: no response within %s", ref.Context().RegistryStr(), timeout))
	defer cancel()
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("skyserve"),
		remote.WithRetryStatusCodes(http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout),
	}
	found, err := remote.Head(ref, options...)
	if err != nil {
		return "", describe(ctx, err)
	}
	if found.Digest == (v1.Hash{}) {
		return "", fmt.Errorf("%s: the response has no digest", ref.Context().RegistryStr())
	}
	return found.Digest.String(), nil
}

// reference parses the name of an image. The tag of NAME:TAG@DIGEST is ignored, as Docker does.
func reference(image string) (name.Reference, error) {
	before, digest, pinned := strings.Cut(image, "@")
	if !pinned {
		return name.ParseReference(image)
	}
	tag, err := name.NewTag(before)
	if err != nil {
		return nil, err
	}
	return name.NewDigest(tag.Repository.Name() + "@" + digest)
}

// describe returns the error of a request as one of this package.
func describe(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var refusal *transport.Error
	if !errors.As(err, &refusal) {
		return err
	}
	kind := map[int]error{
		http.StatusNotFound: ErrNotFound, http.StatusUnauthorized: ErrDenied, http.StatusForbidden: ErrDenied, http.StatusTooManyRequests: ErrLimited,
	}[refusal.StatusCode]
	if kind == nil {
		return err
	}
	host := ""
	if refusal.Request != nil {
		host = refusal.Request.URL.Host + ": "
	}
	return fmt.Errorf("%s%w (HTTP %d)", host, kind, refusal.StatusCode)
}
