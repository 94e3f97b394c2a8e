// The page's entry: mounts App. Everything the page knows comes from GET /v1/live, POST /sql and GET /v1/models.
import { render } from 'preact';
import { App } from './app';
import './style/index.css';

const root = document.getElementById('app');
if (root === null) throw new Error('index.html has no element with id "app"');
render(<App />, root);
