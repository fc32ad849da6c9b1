package testcloud

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// This file emulates the objects of Cloud Storage's JSON API: multipart and resumable uploads, by "Resumable
// uploads" in its documentation.

// gcsObject is an object in the format of the API.
type gcsObject struct {
	Kind        string `json:"kind,omitempty"`
	ID          string `json:"id,omitempty"`
	SelfLink    string `json:"selfLink,omitempty"`
	Bucket      string `json:"bucket,omitempty"`
	Name        string `json:"name,omitempty"`
	Size        string `json:"size,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	CRC32C      string `json:"crc32c,omitempty"`
	Generation  string `json:"generation,omitempty"`

	content []byte
}

// gcsUploadSession is a resumable upload.
type gcsUploadSession struct {
	object     gcsObject // its fields as stated by the caller
	onlyIfNone bool      // ifGenerationMatch=0
	received   []byte
	done       *gcsObject
}

// gcsGranularity is the size of which each part of a resumable upload, except the last, must be a multiple.
const gcsGranularity = 256 << 10

func gcsCRC32C(content []byte) string {
	sum := crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

func (g *GCE) listObjects(r *http.Request, b *gcsBucket) (any, *gceError) {
	var all []gcsObject
	for _, name := range slices.Sorted(maps.Keys(b.objects)) {
		if strings.HasPrefix(name, r.FormValue("prefix")) {
			all = append(all, b.objects[name])
		}
	}
	page, next, fail := gcePage(r, all, g.pageSize)
	if fail != nil {
		return nil, fail
	}
	return map[string]any{"kind": "storage#objects", "items": page, "nextPageToken": next}, nil
}

// getObject returns an object, or its content with alt=media.
func (g *GCE) getObject(r *http.Request, b *gcsBucket) (any, *gceError) {
	o, exists := b.objects[r.PathValue("object")]
	switch {
	case !exists:
		return nil, gcsNoObject(b, r.PathValue("object"))
	case r.FormValue("alt") == "media":
		return gceReply{status: http.StatusOK, header: map[string]string{"Content-Type": o.ContentType}, body: o.content}, nil
	}
	return o, nil
}

func (g *GCE) deleteObject(r *http.Request, b *gcsBucket) (any, *gceError) {
	name := r.PathValue("object")
	if _, exists := b.objects[name]; !exists {
		return nil, gcsNoObject(b, name)
	}
	delete(b.objects, name)
	if b.SoftDelete.Seconds != "0" {
		g.retained++
	}
	return gceReply{status: http.StatusNoContent}, nil
}

func gcsNoObject(b *gcsBucket, name string) *gceError {
	return newGCEError(http.StatusNotFound, "notFound", "No such object: %s/%s", b.Name, name)
}

// insertObject serves the requests of uploads.
func (g *GCE) insertObject(r *http.Request, b *gcsBucket) (any, *gceError) {
	query := r.URL.Query()
	switch id := query.Get("upload_id"); {
	case id != "":
		return g.receivePart(r, b, id)
	case query.Get("uploadType") == "resumable":
		return g.beginUpload(r, b)
	case query.Get("uploadType") == "multipart":
		return g.receiveMultipart(r, b)
	}
	return nil, newGCEError(http.StatusBadRequest, "badRequest", "not emulated: uploadType %q", query.Get("uploadType"))
}

// beginUpload starts a resumable upload and returns its URI in the header Location.
func (g *GCE) beginUpload(r *http.Request, b *gcsBucket) (any, *gceError) {
	s := &gcsUploadSession{onlyIfNone: r.URL.Query().Get("ifGenerationMatch") == "0"}
	if fail := decodeGCE(r, &s.object); fail != nil {
		return nil, fail
	}
	if fail := s.checkPrecondition(b); fail != nil {
		return nil, fail
	}
	id := g.nextNumber()
	g.uploads[id] = s
	location := fmt.Sprintf("http://%s%s?uploadType=resumable&upload_id=%s", r.Host, r.URL.Path, id)
	return gceReply{status: http.StatusOK, header: map[string]string{"Location": location}}, nil
}

func (s *gcsUploadSession) checkPrecondition(b *gcsBucket) *gceError {
	if _, exists := b.objects[s.object.Name]; exists && s.onlyIfNone {
		return newGCEError(http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	}
	return nil
}

var gcsRange = service.LazyPattern(`^bytes (\d+)-(\d+)/(\d+|\*)$`)

// receivePart serves one part of a resumable upload. Bytes that were received before are ignored.
func (g *GCE) receivePart(r *http.Request, b *gcsBucket, id string) (any, *gceError) {
	s := g.uploads[id]
	if s == nil {
		return nil, newGCEError(http.StatusNotFound, "notFound", "Invalid upload request")
	}
	if s.done != nil {
		return *s.done, nil
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, newGCEError(http.StatusBadRequest, "badRequest", "%v", err)
	}
	m := gcsRange().FindStringSubmatch(r.Header.Get("Content-Range"))
	if m == nil {
		return nil, newGCEError(http.StatusBadRequest, "badRequest", "Failed to parse Content-Range header.")
	}
	from, _ := strconv.Atoi(m[1])
	to, _ := strconv.Atoi(m[2])
	if from > len(s.received) || to-from+1 != len(content) {
		return nil, newGCEError(http.StatusBadRequest, "badRequest", "Invalid request. The number of bytes uploaded is required to be equal or greater than the start of the range.")
	}
	if m[3] == "*" && len(content)%gcsGranularity != 0 {
		return nil, newGCEError(http.StatusBadRequest, "badRequest", "Invalid request. The size of each part must be a multiple of 262144 bytes.")
	}
	s.received = append(s.received[:from], content...)
	if total, err := strconv.Atoi(m[3]); err == nil && total == len(s.received) {
		return g.finishUpload(s, b)
	}
	header := map[string]string{"Range": fmt.Sprintf("bytes=0-%d", len(s.received)-1)}
	if r.Header.Get("X-Guploader-No-308") != "yes" {
		return gceReply{status: http.StatusPermanentRedirect, header: header}, nil
	}
	header["X-Http-Status-Code-Override"] = "308"
	return gceReply{status: http.StatusOK, header: header}, nil
}

// finishUpload verifies the content of an upload and creates the object.
func (g *GCE) finishUpload(s *gcsUploadSession, b *gcsBucket) (any, *gceError) {
	if fail := s.checkPrecondition(b); fail != nil {
		return nil, fail
	}
	o := s.object
	if got := gcsCRC32C(s.received); o.CRC32C != "" && o.CRC32C != got {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Provided CRC32C \"%s\" doesn't match calculated CRC32C \"%s\".", o.CRC32C, got)
	}
	o.Kind, o.Bucket, o.Size, o.CRC32C, o.Generation = "storage#object", b.Name, strconv.Itoa(len(s.received)), gcsCRC32C(s.received), g.nextNumber()
	o.ID, o.SelfLink = b.Name+"/"+o.Name+"/"+o.Generation, b.SelfLink+"/o/"+url.PathEscape(o.Name)
	o.content = s.received
	b.objects[o.Name] = o
	s.done, s.received = &o, nil
	return o, nil
}

// receiveMultipart serves an upload in one request: the fields of the object, then its content.
func (g *GCE) receiveMultipart(r *http.Request, b *gcsBucket) (any, *gceError) {
	malformed := func(err error) *gceError {
		return newGCEError(http.StatusBadRequest, "badRequest", "Malformed multipart body: %v", err)
	}
	_, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, malformed(err)
	}
	parts := multipart.NewReader(r.Body, parameters["boundary"])
	var texts [][]byte
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, malformed(err)
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return nil, malformed(err)
		}
		texts = append(texts, text)
	}
	if len(texts) != 2 {
		return nil, malformed(fmt.Errorf("%d parts", len(texts)))
	}
	s := &gcsUploadSession{onlyIfNone: r.URL.Query().Get("ifGenerationMatch") == "0", received: texts[1]}
	d := json.NewDecoder(bytes.NewReader(texts[0]))
	d.DisallowUnknownFields()
	if err := d.Decode(&s.object); err != nil {
		return nil, malformed(err)
	}
	return g.finishUpload(s, b)
}
