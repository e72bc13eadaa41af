package wire

// Response is the plain answer, correlation id and code, of the requests that
// need no more: DeclarePublisher, DeletePublisher, Subscribe, Unsubscribe,
// Create, Delete, SaslAuthenticate, Close, CreateSuperStream and
// DeleteSuperStream.
type Response struct {
	To          Key // the request's key
	Correlation uint32
	Code        ResponseCode
}

func (r *Response) Key() Key { return r.To.Answer() }

func (r *Response) fields(c *codec) {
	c.correlation(&r.Correlation)
	c.code(&r.Code)
}

// Refusal returns the answer to a client's request that could not be carried
// out, with the fields that its layout asks for even then. It returns nil for
// what is never answered.
func Refusal(request Command, code ResponseCode) Command {
	switch q := request.(type) {
	case *QueryPublisherSequence:
		return &QueryPublisherSequenceResponse{Correlation: q.Correlation, Code: code}
	case *QueryOffset:
		return &QueryOffsetResponse{Correlation: q.Correlation, Code: code}
	case *Credit:
		return &CreditResponse{Code: code, SubscriptionID: q.SubscriptionID}
	case *PeerProperties:
		return &PeerPropertiesResponse{Correlation: q.Correlation, Code: code}
	case *SaslHandshake:
		return &SaslHandshakeResponse{Correlation: q.Correlation, Code: code}
	case *Open:
		return &OpenResponse{Correlation: q.Correlation, Code: code}
	case *Route:
		return &RouteResponse{Correlation: q.Correlation, Code: code}
	case *Partitions:
		return &PartitionsResponse{Correlation: q.Correlation, Code: code}
	case *ExchangeCommandVersions:
		return &ExchangeCommandVersionsResponse{Correlation: q.Correlation, Code: code}
	case *StreamStats:
		return &StreamStatsResponse{Correlation: q.Correlation, Code: code}
	case *ResolveOffsetSpec:
		return &ResolveOffsetSpecResponse{Correlation: q.Correlation, Code: code}
	case *Metadata:
		return refuseMetadata(q, code)
	}
	if id, ok := plainlyAnswered(request); ok {
		return &Response{To: request.Key(), Correlation: id, Code: code}
	}
	return nil
}

// plainlyAnswered returns the correlation id of a request answered by Response.
func plainlyAnswered(request Command) (uint32, bool) {
	switch q := request.(type) {
	case *DeclarePublisher:
		return q.Correlation, true
	case *DeletePublisher:
		return q.Correlation, true
	case *Subscribe:
		return q.Correlation, true
	case *Unsubscribe:
		return q.Correlation, true
	case *Create:
		return q.Correlation, true
	case *Delete:
		return q.Correlation, true
	case *SaslAuthenticate:
		return q.Correlation, true
	case *Close:
		return q.Correlation, true
	case *CreateSuperStream:
		return q.Correlation, true
	case *DeleteSuperStream:
		return q.Correlation, true
	}
	return 0, false
}

// refuseMetadata gives each stream the code: Metadata has none for the whole.
func refuseMetadata(q *Metadata, code ResponseCode) *MetadataResponse {
	var streams []StreamMetadata
	for name := range q.Streams.All() {
		streams = append(streams, StreamMetadata{Stream: name, Code: code, Leader: NoLeader})
	}
	return &MetadataResponse{Correlation: q.Correlation, Streams: StreamsMetadataOf(streams...)}
}
