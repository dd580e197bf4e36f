SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.towpath_api_keys (
    id character varying(16) NOT NULL,
    name character varying(100) NOT NULL,
    digest bytea NOT NULL,
    scopes character varying(100) NOT NULL,
    queues text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);
CREATE TABLE public.towpath_couriers (
    sink character varying(64) NOT NULL,
    holder character varying(64) NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE public.towpath_jobs (
    seq bigint NOT NULL,
    queue character varying(64) NOT NULL,
    id character varying(512) NOT NULL,
    job character varying(512) NOT NULL,
    state character varying(12) NOT NULL,
    payload bytea NOT NULL,
    options text,
    priority integer NOT NULL,
    lane character varying(512),
    subject character varying(512),
    version bigint,
    attempts integer NOT NULL,
    max_attempts integer,
    fence bigint NOT NULL,
    last_error text,
    result bytea,
    created_at bigint NOT NULL,
    due_at bigint,
    started_at bigint,
    finished_at bigint,
    relay_at bigint,
    cancel_requested boolean NOT NULL,
    revision character varying(128),
    follows character varying(128),
    CONSTRAINT ck_towpath_jobs_ck_towpath_jobs_state CHECK (((state)::text = ANY ((ARRAY['pending'::character varying, 'running'::character varying, 'completed'::character varying, 'failed'::character varying, 'dead'::character varying, 'cancelled'::character varying, 'superseded'::character varying])::text[])))
);
CREATE SEQUENCE public.towpath_jobs_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.towpath_jobs_seq_seq OWNED BY public.towpath_jobs.seq;
CREATE TABLE public.towpath_outbox (
    seq bigint NOT NULL,
    sink character varying(64) NOT NULL,
    id character varying(1024) NOT NULL,
    type character varying(128) NOT NULL,
    source character varying(512) NOT NULL,
    key character varying(1024) NOT NULL,
    data bytea NOT NULL,
    at bigint NOT NULL,
    created_at bigint NOT NULL,
    attempts integer NOT NULL,
    refused_at bigint,
    reason text
);
CREATE SEQUENCE public.towpath_outbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.towpath_outbox_seq_seq OWNED BY public.towpath_outbox.seq;
CREATE TABLE public.towpath_schema (
    version_num character varying(32) NOT NULL
);
ALTER TABLE ONLY public.towpath_jobs ALTER COLUMN seq SET DEFAULT nextval('public.towpath_jobs_seq_seq'::regclass);
ALTER TABLE ONLY public.towpath_outbox ALTER COLUMN seq SET DEFAULT nextval('public.towpath_outbox_seq_seq'::regclass);
INSERT INTO public.towpath_api_keys VALUES ('egrm25gbsg', 'admin', '\xf8eca8ba30f00b12de3e5d8c3aec51ab4ccef1964fb33c08dbb6543f15fa8501', 'admin', '*', 1794845267400, NULL, NULL, NULL);
INSERT INTO public.towpath_api_keys VALUES ('qs8ekhmyd7', 'submit', '\xfc50026d37cc2897e1b84bda8fce024daf43f7e98466006d113207099e128282', 'submit', 'mails-*', 1794845267404, NULL, NULL, NULL);
INSERT INTO public.towpath_api_keys VALUES ('fx6gekxxwj', 'revoked', '\xf6f0e2e0fd253db84c2b377f914e237c948d61940815c091e03440b45bb6eb2a', 'admin', '*', 1794845267407, NULL, 1794845267413, NULL);
INSERT INTO public.towpath_api_keys VALUES ('yjvnxx6dpp', 'until tomorrow', '\x65843f072cb1998082e4d9dd3f935df14a42a23b1c1d7fd12b9be658415fc1a6', 'read work', '*', 1794845267417, 1794931667417, NULL, NULL);
INSERT INTO public.towpath_couriers VALUES ('(relay)', '3304a64791814751', 1794845297436);
INSERT INTO public.towpath_couriers VALUES ('audit', 'fc2896ec1947916e', 0);
INSERT INTO public.towpath_jobs VALUES (1, 'orders', 'completed', 'completed', 'completed', '\x22636f6d706c6574656422', NULL, 100, NULL, NULL, NULL, 1, NULL, 1767225600000000, NULL, '\x226120726573756c7422', 1794845267436, NULL, 1794845267460, 1794845267472, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (2, 'orders', 'dead', 'dead', 'dead', '\x226465616422', NULL, 100, NULL, NULL, NULL, 1, NULL, 1767225600000001, 'ValueError: no', NULL, 1794845267477, NULL, 1794845267485, 1794845267487, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (3, 'orders', 'cancelled', 'cancelled', 'cancelled', '\x2263616e63656c6c656422', NULL, 50, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267491, NULL, NULL, 1794845267495, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (4, 'orders', 'retried', 'retried~2', 'pending', '\x227265747269656422', NULL, 100, NULL, NULL, NULL, 0, NULL, 0, 'it was worth another try', NULL, 1794845267497, NULL, 1794845267499, NULL, 1794845267505, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (5, 'orders', 'subject-r1', 'subject-r1', 'superseded', '\x22723122', NULL, 50, NULL, 'order#7', 1, 0, NULL, 0, 'superseded by subject-r2', NULL, 1794845267510, 1794845387510, NULL, 1794845267513, NULL, false, 'r1', NULL);
INSERT INTO public.towpath_jobs VALUES (7, 'orders', 'subject-r3', 'subject-r3', 'pending', '\x22723322', NULL, 50, NULL, 'order#7', 3, 0, NULL, 0, NULL, NULL, 1794845267519, 1794845387519, NULL, NULL, 1794845269519, false, 'r3', 'r2');
INSERT INTO public.towpath_jobs VALUES (6, 'orders', 'subject-r2', 'subject-r2', 'superseded', '\x22723222', NULL, 50, NULL, 'order#7', 2, 0, NULL, 0, 'superseded by subject-r3', NULL, 1794845267513, 1794845387513, NULL, 1794845267519, NULL, false, 'r2', 'r1');
INSERT INTO public.towpath_jobs VALUES (8, 'orders', 'failed', 'failed', 'failed', '\x226661696c656422', '{"retry":"{\"type\":\"listed\",\"waits\":[\"PT180S\",\"PT3600S\"]}"}', 100, NULL, NULL, NULL, 1, 3, 1767225600000004, 'TimeoutError: slow', NULL, 1794845267523, 1794845447527, 1794845267526, NULL, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (9, 'orders', 'running', 'running', 'running', '\x2272756e6e696e6722', '{"headers":"{\"handler\":\"bill\",\"tenant\":\"seven\"}"}', 100, NULL, NULL, NULL, 1, NULL, 1767225600000005, NULL, NULL, 1794845267531, NULL, 1794845267533, NULL, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (10, 'orders', 'running-cancelled', 'running-cancelled', 'running', '\x2272756e6e696e672d63616e63656c6c656422', NULL, 100, NULL, NULL, NULL, 1, NULL, 1767225600000006, NULL, NULL, 1794845267535, NULL, 1794845267538, NULL, 1794845269542, true, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (11, 'orders', 'lane-a', 'lane-a', 'running', '\x226c616e652d6122', NULL, 100, 'u1', NULL, NULL, 1, NULL, 1767225600000007, NULL, NULL, 1794845267543, NULL, 1794845267546, NULL, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (12, 'orders', 'lane-b', 'lane-b', 'pending', '\x226c616e652d6222', NULL, 50, 'u1', NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267548, NULL, NULL, NULL, 1794845269548, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (13, 'orders', 'lane-c', 'lane-c', 'pending', '\x226c616e652d6322', NULL, 50, 'u1', NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267550, NULL, NULL, NULL, 1794845269550, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (14, 'reviews', 'api-done', 'api-done', 'completed', '\x7b22666f726765223a22676974687562222c226b696e64223a2270756c6c222c227265706f7369746f7279223a22612f62222c2268656164223a2230303030303030303030303030303030303030303030303030303030303030303030303030303037222c226e756d626572223a312c22726566223a22222c22746172676574223a6e756c6c2c2262617365223a6e756c6c2c226265666f7265223a6e756c6c2c227469746c65223a22c39c222c22617574686f72223a22222c2275726c223a22222c22636c6f6e655f75726c223a22222c22616374696f6e223a22726571756573746564222c22686f7374223a22227d', '{"headers":"{\"review\":\"api-done\"}"}', 100, NULL, 'github:a/b#1', 0, 1, NULL, 1767225600000000, NULL, '\x7b2273756d6d617279223a2261206665772072656d61726b73222c2276657264696374223a22636f6d6d656e74222c22636f6d6d656e7473223a5b7b2270617468223a22612e7079222c22626f6479223a227768793f222c226c696e65223a332c227365766572697479223a227761726e696e67227d5d7d', 1794845267552, NULL, 1794845267555, 1794845267557, NULL, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (15, 'reviews', 'api-waits', 'api-waits', 'pending', '\x7b22666f726765223a226769746c6162222c226b696e64223a2270757368222c227265706f7369746f7279223a22612f62222c2268656164223a2230303030303030303030303030303030303030303030303030303030303030303030303030303037222c226e756d626572223a6e756c6c2c22726566223a226d61696e222c22746172676574223a6e756c6c2c2262617365223a6e756c6c2c226265666f7265223a6e756c6c2c227469746c65223a22222c22617574686f72223a22222c2275726c223a22222c22636c6f6e655f75726c223a22222c22616374696f6e223a22726571756573746564222c22686f7374223a22227d', '{"headers":"{\"review\":\"api-waits\"}"}', 50, NULL, 'gitlab:a/b@main', 0, 0, NULL, 0, NULL, NULL, 1794845267559, NULL, NULL, NULL, 1794845269559, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (16, 'orders', 'pending', 'pending', 'pending', '\x2270656e64696e6722', '{"keep":60000,"lease":120000}', 50, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267561, NULL, NULL, NULL, 1794845269561, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (17, 'orders', 'delayed', 'delayed', 'pending', '\x2264656c6179656422', NULL, 100, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267568, 1794847067568, NULL, NULL, 1794845269568, false, NULL, NULL);
INSERT INTO public.towpath_jobs VALUES (18, 'orders', 'unseen', 'unseen', 'pending', '\x22756e7365656e22', NULL, 50, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, 1794845267621, NULL, NULL, NULL, 1794845269621, false, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (2, 'events', 'orders/completed/completed', 'towpath.job.completed', 'towpath', 'orders/completed', '\x7b227175657565223a226f7264657273222c226964223a22636f6d706c65746564222c227374617465223a22636f6d706c65746564222c227375626a656374223a6e756c6c2c22617474656d707473223a312c22726561736f6e223a6e756c6c7d', 1794845267472, 1794845267474, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (4, 'events', 'orders/dead/dead', 'towpath.job.dead', 'towpath', 'orders/dead', '\x7b227175657565223a226f7264657273222c226964223a2264656164222c227374617465223a2264656164222c227375626a656374223a6e756c6c2c22617474656d707473223a312c22726561736f6e223a2256616c75654572726f723a206e6f227d', 1794845267487, 1794845267488, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (6, 'events', 'orders/cancelled/cancelled', 'towpath.job.cancelled', 'towpath', 'orders/cancelled', '\x7b227175657565223a226f7264657273222c226964223a2263616e63656c6c6564222c227374617465223a2263616e63656c6c6564222c227375626a656374223a6e756c6c2c22617474656d707473223a302c22726561736f6e223a6e756c6c7d', 1794845267495, 1794845267495, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (8, 'events', 'orders/retried/dead', 'towpath.job.dead', 'towpath', 'orders/retried', '\x7b227175657565223a226f7264657273222c226964223a2272657472696564222c227374617465223a2264656164222c227375626a656374223a6e756c6c2c22617474656d707473223a312c22726561736f6e223a2269742077617320776f72746820616e6f7468657220747279227d', 1794845267501, 1794845267501, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (10, 'events', 'orders/subject-r1/superseded', 'towpath.job.superseded', 'towpath', 'orders/subject-r1', '\x7b227175657565223a226f7264657273222c226964223a227375626a6563742d7231222c227374617465223a2273757065727365646564222c227375626a656374223a226f726465722337222c22617474656d707473223a302c22726561736f6e223a2273757065727365646564206279207375626a6563742d7232227d', 1794845267513, 1794845267517, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (12, 'events', 'orders/subject-r2/superseded', 'towpath.job.superseded', 'towpath', 'orders/subject-r2', '\x7b227175657565223a226f7264657273222c226964223a227375626a6563742d7232222c227374617465223a2273757065727365646564222c227375626a656374223a226f726465722337222c22617474656d707473223a302c22726561736f6e223a2273757065727365646564206279207375626a6563742d7233227d', 1794845267519, 1794845267521, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (14, 'events', 'reviews/api-done/completed', 'towpath.job.completed', 'towpath', 'reviews/api-done', '\x7b227175657565223a2272657669657773222c226964223a226170692d646f6e65222c227374617465223a22636f6d706c65746564222c227375626a656374223a226769746875623a612f622331222c22617474656d707473223a312c22726561736f6e223a6e756c6c7d', 1794845267557, 1794845267557, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (16, 'events', 'aside/1', 'towpath.parcel.sent', 'towpath', 'aside', '\x7b226e756d626572223a20317d', 1794845267569, 1794845267569, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (18, 'events', 'taken/1', 'towpath.parcel.sent', 'towpath', 'taken', '\x7b226e756d626572223a20317d', 1794845267569, 1794845267569, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (15, 'audit', 'aside/1', 'towpath.parcel.sent', 'towpath', 'aside', '\x7b226e756d626572223a20317d', 1794845267569, 1794845267569, 0, 1794845267606, 'it is malformed');
INSERT INTO public.towpath_outbox VALUES (19, 'audit', 'k/1', 'towpath.parcel.sent', 'towpath', 'k', '\x7b226e756d626572223a20317d', 1794845267619, 1794845267619, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (20, 'events', 'k/1', 'towpath.parcel.sent', 'towpath', 'k', '\x7b226e756d626572223a20317d', 1794845267619, 1794845267619, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (21, 'audit', 'k/2', 'towpath.parcel.sent', 'towpath', 'k', '\x7b226e756d626572223a20327d', 1794845267619, 1794845267619, 0, NULL, NULL);
INSERT INTO public.towpath_outbox VALUES (22, 'events', 'k/2', 'towpath.parcel.sent', 'towpath', 'k', '\x7b226e756d626572223a20327d', 1794845267619, 1794845267619, 0, NULL, NULL);
INSERT INTO public.towpath_schema VALUES ('0006');
SELECT pg_catalog.setval('public.towpath_jobs_seq_seq', 18, true);
SELECT pg_catalog.setval('public.towpath_outbox_seq_seq', 22, true);
ALTER TABLE ONLY public.towpath_api_keys
    ADD CONSTRAINT pk_towpath_api_keys PRIMARY KEY (id);
ALTER TABLE ONLY public.towpath_couriers
    ADD CONSTRAINT pk_towpath_couriers PRIMARY KEY (sink);
ALTER TABLE ONLY public.towpath_jobs
    ADD CONSTRAINT pk_towpath_jobs PRIMARY KEY (seq);
ALTER TABLE ONLY public.towpath_outbox
    ADD CONSTRAINT pk_towpath_outbox PRIMARY KEY (seq);
ALTER TABLE ONLY public.towpath_schema
    ADD CONSTRAINT towpath_schema_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.towpath_api_keys
    ADD CONSTRAINT uq_towpath_api_keys_digest UNIQUE (digest);
ALTER TABLE ONLY public.towpath_jobs
    ADD CONSTRAINT uq_towpath_jobs_queue_id UNIQUE (queue, id);
ALTER TABLE ONLY public.towpath_jobs
    ADD CONSTRAINT uq_towpath_jobs_queue_job UNIQUE (queue, job);
CREATE INDEX ix_towpath_jobs_finished_at ON public.towpath_jobs USING btree (finished_at);
CREATE INDEX ix_towpath_jobs_lane ON public.towpath_jobs USING btree (queue, lane, seq) WHERE ((lane IS NOT NULL) AND ((state)::text = ANY ((ARRAY['pending'::character varying, 'running'::character varying, 'failed'::character varying])::text[])));
CREATE INDEX ix_towpath_jobs_queue_state_seq ON public.towpath_jobs USING btree (queue, state, seq);
CREATE INDEX ix_towpath_jobs_queue_subject_version ON public.towpath_jobs USING btree (queue, subject, version);
CREATE INDEX ix_towpath_jobs_unseen ON public.towpath_jobs USING btree (queue, relay_at) WHERE (relay_at IS NOT NULL);
CREATE INDEX ix_towpath_outbox_pending ON public.towpath_outbox USING btree (sink, seq) WHERE (refused_at IS NULL);
CREATE INDEX ix_towpath_outbox_refused ON public.towpath_outbox USING btree (sink, seq) WHERE (refused_at IS NOT NULL);
